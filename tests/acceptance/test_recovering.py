"""Sessions whose data is damaged: where the damage lies, whose what is left of them is, and what is said of it."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from holdfast import SessionManager
from holdfast.store.files import FilesStore
from holdfast.store.port import Derive, Rebuilt
from tests.acceptance.test_session_files import damage, filled


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "conversations"


def test_who_interrupts_a_recovery_can_go_on_with_the_store(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(folder, "tides")
    damage(folder, "tides")

    def rebuild(self: FilesStore, derive: Derive) -> Generator[int | Rebuilt]:
        self.take_turn()
        yield 1
        raise KeyboardInterrupt

    with SessionManager(base_path=folder) as manager:
        with monkeypatch.context() as patched:
            patched.setattr(FilesStore, "rebuild", rebuild)
            with pytest.raises(KeyboardInterrupt):
                manager.load_session("tides")
        assert manager.create_session("ebb").id == "ebb"
