"""Programs in fresh interpreters, with compiled modules, as an installed package has them."""

import os
import subprocess
import sys
from pathlib import Path


def output_of(program: str, *arguments: object, compiled: Path) -> str:
    """Run a program to its end and return what it printed.

    Byte code is kept in the folder `compiled`, whatever the environment says about writing it, so
    that only the first of several runs compiles.
    """
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(compiled)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment).stdout
