"""Where the fault tests keep their stores."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

RAM = Path("/dev/shm")


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A folder in RAM where there is one: simulated power cuts need no real disk."""
    folder = Path(tempfile.mkdtemp(prefix="limpet-", dir=RAM if RAM.is_dir() else None))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
