"""`limpet version`: what is running here. The driver apsw carries SQLite's version in its own."""

from __future__ import annotations

import platform
from importlib import metadata

from limpet.cli import exits
from limpet.cli.options import Printing
from limpet.cli.surface import Face, Surface


def run(printing: Printing) -> int:
    """Print the versions that matter to a report."""
    import limpet  # noqa: PLC0415 - the package is still loading when this module is

    surface = Surface(as_json=printing.json, quiet=printing.quiet)
    found = {
        "limpet": limpet.__version__,
        "python": platform.python_version(),
        "apsw": metadata.version("apsw"),
    }
    if surface.face is Face.JSON:
        surface.document(found)
    else:
        for name, value in found.items():
            print(f"{name} {value}")
    return exits.DONE
