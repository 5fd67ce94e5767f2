"""`python -m limpet` is the `limpet` command."""

from __future__ import annotations

import sys

from limpet.cli import main

if __name__ == "__main__":
    sys.exit(main())
