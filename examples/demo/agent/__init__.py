"""The agent loop, over a session and frames. Read `loop.py` first.

`loop.py` is the loop: what comes next, and why a kill between any two lines of it does no harm. `acting.py` runs one
tool call: noted, asked about, run, answered. `parts.py` says what an agent is made of. The demo's keeper
and examples/agent.py are programs over it.
"""
