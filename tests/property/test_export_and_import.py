"""Whatever happened in a store: an export of it, imported elsewhere, gives back the same, byte for byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import limits
from limpet.admin.export import begin_version
from tests.property.busy_store import Walk, picture

STEPS = 70


def opened(path: Path | str) -> Any:
    return limpet.connect(path, max_messages_per_session=14)


def exported(lp: Any, path: Path) -> bytes:
    lp.admin.export(path)
    return path.read_bytes()


def engine_of(lp: Any) -> Any:
    return lp.admin._engine


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("target", ["sqlite", "volatile"])
def test_a_walk_survives_the_journey(seed: int, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    if seed % 2:
        # Small steps: every session is hidden until its last one.
        monkeypatch.setattr(limits, "IMPORT_STEP_EVENTS", 5)
    source = opened("volatile:" if seed % 3 else tmp_path / "source.db")
    walk = Walk(source, seed)
    for _ in range(STEPS):
        walk.step()
    before = exported(source, tmp_path / "one.jsonl")
    with opened(tmp_path / "target.db" if target == "sqlite" else "volatile:") as there:
        report = there.admin.import_(tmp_path / "one.jsonl")
        assert report.sessions == len(walk.ids()) and not report.skipped
        assert exported(there, tmp_path / "two.jsonl") == before
        for name in walk.ids():
            _same(source, there, name)
        assert there.sessions.list_sessions(limit=1000)[0]["id"] == walk.ids()[0]
        assert there.admin.verify().ok
        again = there.admin.import_(tmp_path / "one.jsonl")
        assert (again.sessions, again.already) == (0, report.sessions)
        there.admin.rebuild()
        assert exported(there, tmp_path / "three.jsonl") == before
    source.close()


def _same(source: Any, there: Any, name: str) -> None:
    mine, theirs = source.sessions.get_session(name), there.sessions.get_session(name)
    engine, other = engine_of(source), engine_of(there)
    was, is_ = picture(mine, engine), picture(theirs, other)
    shown = zip(was.pop("shown"), is_.pop("shown"), strict=True)
    assert is_ == was
    assert all(now == before for before, now in shown if before is not None)
    if not begin_version(engine, "default", mine.state) and theirs.version == mine.version:
        assert theirs.state == mine.state
        for version in range(1, mine.version + 1):
            before = _at(mine, version)
            if before is not None:
                assert _at(theirs, version) == before, (name, version)


def _at(session: Any, version: int) -> Any:
    try:
        return [message.to_dict() for message in session.at(version).messages]
    except limpet.NotFound:
        return None
