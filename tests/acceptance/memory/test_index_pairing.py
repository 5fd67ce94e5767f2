"""A store and the memory beside it stay bound, whoever looks in between, and a damaged memory is learnt anew."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from limpet import Limpet, errors
from limpet.memory.index_store import WHOLE_STORE
from limpet.stores.sqlite.index_store import SQLiteIndexStore
from tests.acceptance.full_store import known, opened, said, worked


@pytest.fixture
def path(fast_dir: Path) -> Path:
    return fast_dir / "state.db"


def taught(lp: Limpet) -> list[str]:
    said(lp, "one", "ada", "I live in Oslo.")
    said(lp, "two", "ada", "I work as a baker.")
    worked(lp)
    found = known(lp, "ada")
    assert len(found) == 2
    return found


@pytest.mark.parametrize("gap", [1, 2])
@pytest.mark.parametrize("dies", [False, True])
def test_whoever_opens_while_they_are_bound_anew_throws_nothing_away(
    path: Path, monkeypatch: pytest.MonkeyPatch, gap: int, *, dies: bool
):
    cleared: list[int] = []
    clear = SQLiteIndexStore.clear
    with opened(path) as lp:
        before = taught(lp)
        monkeypatch.setattr(SQLiteIndexStore, "clear", lambda self: (cleared.append(1), clear(self)))
        store, calls = lp.sessions._service.engine.store, list[int]()
        put = store.put_note

        def noted(tenant: str, name: str, value: bytes | None, *, expected: int) -> bool:
            if tenant == WHOLE_STORE:
                calls.append(1)
                if len(calls) == gap:
                    opened(path).close()
                    if dies:
                        raise errors.Unavailable("it is over.")
            return put(tenant, name, value, expected=expected)

        monkeypatch.setattr(store, "put_note", noted)
        if dies:
            with pytest.raises(errors.Unavailable):
                lp.memory.forget("nobody")
        else:
            lp.memory.forget("nobody")
        assert len(calls) >= gap
    monkeypatch.setattr(store, "put_note", put)
    with opened(path) as lp:
        assert known(lp, "ada") == before
    assert not cleared


def test_what_is_found_damaged_while_it_learns_is_learnt_again(path: Path, monkeypatch: pytest.MonkeyPatch):
    get, damaged = SQLiteIndexStore.get, [False]

    def found(self: SQLiteIndexStore, book: str, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        if book == "memory.taken" and damaged[0]:
            damaged[0] = False
            raise errors.Corrupt("a page is damaged.")
        return dict(get(self, book, keys))

    monkeypatch.setattr(SQLiteIndexStore, "get", found)
    with opened(path) as lp:
        before = taught(lp)
        said(lp, "three", "ada", "I am allergic to peanuts.")
        damaged[0] = True
        worked(lp)
        assert not damaged[0]
        assert set(before) < set(known(lp, "ada"))
