"""A process that has imported the command line, and becomes one run of it after another by forking.

    python -P zygote.py SOCKET

Each request, a line of JSON, names arguments, folder and environment, and brings stdin, stdout and stderr. The fork
takes them over and ends as `python -m limpet` does: a process of its own, without the time that
importing takes. The answer is its exit code. Nothing of it has run before: only modules are loaded.
"""

from __future__ import annotations

import gc
import json
import os
import pkgutil
import runpy
import socket
import sys
from typing import Any

import limpet.cli
from limpet.cli import program as _program


def serve(requests: socket.socket) -> bool:
    """Answer requests until there are none; whether this is the fork that has to run the command."""
    while True:
        data, files, _, _ = socket.recv_fds(requests, 65_536, 3)
        if not data:
            return False
        while not data.endswith(b"\n"):
            data += requests.recv(65_536)
        process = os.fork()
        if not process:
            requests.close()
            _become(json.loads(data), files)
            return True
        for file in files:
            os.close(file)
        requests.send(str(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])).encode())


def _become(request: dict[str, Any], files: list[int]) -> None:
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    # As the interpreter makes them when it starts on these files.
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv[1:] = request["arguments"]


def _import_commands() -> None:
    assert not _program.sys.stdout.isatty(), "how help looks was decided when this was imported"
    for module in pkgutil.walk_packages(limpet.cli.__path__, "limpet.cli."):
        __import__(module.name)


if __name__ == "__main__":
    _import_commands()
    gc.freeze()
    if serve(socket.socket(fileno=int(sys.argv[1]))):
        runpy.run_module("limpet", run_name="__main__", alter_sys=True)
