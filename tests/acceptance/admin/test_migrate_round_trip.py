"""From SQLite to PostgreSQL, to Redis, to files and back: nothing is another than it was."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

import limpet
from tests import corpus
from tests.acceptance.admin.test_migrate import exported, kept_at, lived
from tests.property.backends import OPENERS

WAY = ("postgres", "redis", "files", "sqlite")


@pytest.fixture
def sample(tmp_path: Path, data_dir: Path | None) -> Path:
    """A store with a bit of everything, and conversations: generated ones, and recorded ones where they are."""
    path = tmp_path / "sample.db"
    lived(path)
    chats = list(corpus.conversations(1, 20, parallel=True))
    if data_dir is not None:
        chats += corpus.read_recorded(data_dir / "agent-conversations.jsonl.gz")
    with limpet.connect(path) as lp:
        for number, chat in enumerate(chats):
            lp.sessions.create_session(f"chat-{number}", user_id="ada").add_messages(chat)
    return path


@pytest.mark.req("A-20")
def test_a_sample_goes_round_all_backends_and_comes_back_the_same(sample: Path, tmp_path: Path):
    said = {tenant: exported(sample, tmp_path, tenant) for tenant in ("default", "globex")}
    with ExitStack() as stack:
        here: str | Path = sample
        for number, backend in enumerate(WAY):
            folder = tmp_path / f"{number}-{backend}"
            folder.mkdir()
            there = stack.enter_context(OPENERS[backend](folder))
            with limpet.connect(here) as lp:
                moved = lp.admin.migrate(there)
            assert (moved.tenants, moved.behind, moved.verified) == (2, {}, True), backend
            here = there
        back = Path(here)
        for tenant, lines in said.items():
            assert exported(back, tmp_path, tenant) == lines
        assert kept_at(back) == kept_at(sample)
