"""The demo: a lighthouse keeper's night. Offline, with real tools, on a real store.

Read `agent/loop.py` first: it is the whole agent. `keeper.py` is the program over it, a process of its own;
`script.py` is what its models say, `tools.py` what its tools do. `director.py` starts the keeper, says yes when
it asks, kills it with SIGKILL in the middle of a tool call, and starts another on the same file; `logbook.py`
is a conversation that outgrows its budget. `claims.py` checks what is claimed about all of it, `stage.py` shows it.
"""
