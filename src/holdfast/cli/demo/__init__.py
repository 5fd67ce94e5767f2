"""The demo: a lighthouse keeper's night. Offline, with real tools, on a real store.

Read `keeper.py` first: it is the whole agent, a process of its own. `script.py` is what its model
says, `tools.py` what its tools do. `director.py` starts the keeper, kills it with SIGKILL in the middle of a
tool call, starts another on the same file; `logbook.py` is a conversation that outgrows its budget.
`claims.py` checks what is claimed about both, `stage.py` shows it.
"""
