"""Links and pipes in the places of a file store's own files: nothing is followed, and nothing is waited for."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import limpet
from tests.acceptance.stores.test_files_store import filled, say, texts


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def url(folder: Path) -> str:
    return f"files:{folder}"


@pytest.mark.parametrize("name", [".index/state.db-anchor", "journal/.lock", "journal/rewriting", "erased.list"])
def test_a_link_in_the_place_of_a_file_leads_nowhere(tmp_path: Path, folder: Path, url: str, name: str) -> None:
    filled(url)
    victim = tmp_path / "victim"
    victim.write_text("nobody's business\n")
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(victim)
    with pytest.raises(limpet.errors.NotAStore, match=rf"{name} is in the way") as info:
        limpet.connect(url).close()
    assert "Remove it" in info.value.hint
    assert victim.read_text() == "nobody's business\n" and (folder / name).is_symlink()
    (folder / name).unlink()
    with limpet.connect(url) as lp:
        assert len(texts(lp, "tides")) == 6


@pytest.mark.parametrize("name", ["journal/000001.jsonl", "journal/000002.jsonl", "journal/rewriting", "erased.list"])
def test_a_pipe_in_the_place_of_a_file_keeps_nobody_waiting(folder: Path, url: str, name: str) -> None:
    filled(url)
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    with pytest.raises(limpet.errors.NotAStore, match=rf"{name} is in the way"):
        limpet.connect(url).close()


def test_a_pipe_in_the_place_of_a_blob_is_found_and_never_waited_for(folder: Path, url: str) -> None:
    with limpet.connect(url) as lp:
        lp.sessions.create_session("tides").add_message(say("long " * 20_000))
        (blob,) = (folder / "blobs").iterdir()
        blob.unlink()
        os.mkfifo(blob)
        (fault,) = lp.admin.verify().faults
        assert f"{blob} is in the way" in fault
    shutil.rmtree(folder / ".index")
    with pytest.raises(limpet.errors.NotAStore, match=f"{blob.name} is in the way"):
        limpet.connect(url).close()
