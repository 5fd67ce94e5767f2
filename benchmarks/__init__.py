"""Speed and memory of Limpet, measured against raw SQLite, files and servers, and a peer: `python -m benchmarks`.

Start at `__main__`; `harness` says how things are compared, and every other file is one idea.
"""
