"""Runs the real command as a process of its own, in a pipe or on a terminal.

The process is a fork of one that has imported the command already (`zygote`), unless the run is about
how the interpreter starts, or what is decided then: how help looks on a terminal.
"""

from __future__ import annotations

import atexit
import fcntl
import functools
import json
import os
import pty
import socket
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

LIMPET = (sys.executable, "-P", "-m", "limpet")
# What the person at this keyboard has set must not decide about a test.
_OURS = ("LIMPET_URL", "LIMPET_ASCII", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "TERM")
# What an interpreter looks at when it starts.
_AT_START = ("PYTHON", "LC_", "LANG")


class Done(NamedTuple):
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in _OURS}
    return {**kept, "PYTHONUTF8": "1", **(extra or {})}


def run(*arguments: str, cwd: Path, env: Mapping[str, str] | None = None, program: tuple[str, ...] = LIMPET) -> Done:
    """Run it with stdout and stderr in pipes."""
    if program == LIMPET and _may_fork(env):
        out, out_end = os.pipe()
        return _forked(arguments, cwd, environment(env), out, out_end)
    ended = subprocess.run(
        [*program, *arguments],
        cwd=cwd,
        env=environment(env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    return Done(ended.returncode, ended.stdout.decode(), ended.stderr.decode())


def _may_fork(env: Mapping[str, str] | None) -> bool:
    return not any(name.startswith(_AT_START) for name in env or ())


def _forked(arguments: tuple[str, ...], cwd: Path, env: Mapping[str, str], out: int, out_end: int) -> Done:
    request = {"arguments": arguments, "cwd": str(cwd), "env": env}
    nothing = os.open(os.devnull, os.O_RDONLY)
    err, err_end = os.pipe()
    theirs = [nothing, out_end, err_end]
    socket.send_fds(_zygote(), [json.dumps(request).encode() + b"\n"], theirs)
    for file in theirs:
        os.close(file)
    with ThreadPoolExecutor(1) as beside:
        errors = beside.submit(_read_to_end, err)
        printed = _read_to_end(out)
    code = _zygote().recv(16)
    assert code, "the zygote has died"
    return Done(int(code), printed.decode(), errors.result().decode())


@functools.cache
def _zygote() -> socket.socket:
    """The line to the process that this one's runs are forked from; it ends with this one."""
    ours, theirs = socket.socketpair()
    process = subprocess.Popen(
        [sys.executable, "-P", str(Path(__file__).with_name("preloaded_command.py")), str(theirs.fileno())],
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=[theirs.fileno()],
    )
    theirs.close()
    atexit.register(lambda: (ours.close(), process.wait()))
    return ours


def on_terminal(*arguments: str, cwd: Path, env: Mapping[str, str] | None = None, columns: int = 100) -> Done:
    """Run it with stdout on a terminal; the terminal's \\r\\n become \\n."""
    out, out_end = pty.openpty()
    fcntl.ioctl(out_end, termios.TIOCSWINSZ, struct.pack("HHHH", 60, columns, 0, 0))
    if _may_fork(env) and "--help" not in arguments:
        whole = environment({"TERM": "xterm-256color", **(env or {})})
        code, out_, err_ = _forked(arguments, cwd, whole, out, out_end)
        return Done(code, out_.replace("\r\n", "\n"), err_)
    with tempfile.TemporaryFile() as err:
        process = subprocess.Popen(
            [*LIMPET, *arguments],
            cwd=cwd,
            env=environment({"TERM": "xterm-256color", **(env or {})}),
            stdin=subprocess.DEVNULL,
            stdout=out_end,
            stderr=err,
        )
        os.close(out_end)
        printed = _read_to_end(out)
        code = process.wait()
        err.seek(0)
        return Done(code, printed.decode().replace("\r\n", "\n"), err.read().decode())


def _read_to_end(terminal: int) -> bytes:
    chunks: list[bytes] = []
    while True:
        try:
            chunk = os.read(terminal, 65_536)
        except OSError:  # what Linux says when the last writer has gone
            chunk = b""
        if not chunk:
            os.close(terminal)
            return b"".join(chunks)
        chunks.append(chunk)
