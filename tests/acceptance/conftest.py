"""The two backends, opened through the public interface."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import Limpet
from tests.acceptance.conversation_steps import Opener


@pytest.fixture(params=["volatile", "sqlite"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def fast_dir() -> Iterator[Path]:
    """A folder where syncing costs nothing, for tests that ask about rules and not about disks."""
    shm = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="limpet-", dir=shm if shm.is_dir() else None))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def opener(backend: str, fast_dir: Path) -> Iterator[Opener]:
    """Opens a store of the backend; what is left open is closed after the test."""
    opened: list[Limpet] = []

    def open_(**options: Any) -> Limpet:
        url = "volatile:" if backend == "volatile" else fast_dir / "state.db"
        made = limpet.connect(url, **options)
        opened.append(made)
        return made

    yield open_
    for one in opened:
        one.close()


@pytest.fixture
def lp(opener: Opener) -> Limpet:
    return opener()
