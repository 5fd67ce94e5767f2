"""A backup is put back: whole, or so that the same command goes on with it."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast
from holdfast import errors
from holdfast.engine import arriving
from holdfast.store.volatile import VolatileStore
from holdfast.wiring import moving
from tests.acceptance import whole
from tests.acceptance.test_migrating import kept, kept_at

TENANTS = ("default", "globex", "initech")


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    """A backup of several tenants."""
    for tenant in TENANTS:
        with holdfast.connect(tmp_path / "a.db", tenant=tenant) as hf:
            whole.said(hf, "s", "ada", "words")
    with holdfast.connect(tmp_path / "a.db") as hf:
        return hf.admin.backup(tmp_path / "monday.db")


class Ending(VolatileStore):
    """A server whose client dies when so many tenants were opened."""

    left = 0

    def put_note(self, tenant: str, name: str, value: bytes | None, *, expected: int) -> bool:
        if name == arriving.NOTE and value is None:
            self.left -= 1
            if self.left == 0:
                raise errors.Unavailable("told to.")
        return super().put_note(tenant, name, value, expected=expected)

    def close(self) -> None:
        """A server stays."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Ending:
    """What mine://x names."""
    target, real = Ending(), moving.open_store
    monkeypatch.setattr(
        moving, "open_store", lambda url: target if str(url) == "mine://x" else real(url)
    )
    return target


def restored(backup: Path, goal: str | Path) -> int:
    return moving.restore(backup, goal, lambda *_: None).events


@pytest.mark.parametrize("at", [1, 2, 3])
def test_one_that_ends_while_tenants_are_opened_goes_on(backup: Path, server: Ending, at: int):
    server.left = at
    with pytest.raises(errors.Unavailable):
        restored(backup, "mine://x")
    assert sum(arriving.is_arriving(server, tenant) for tenant in TENANTS) == len(TENANTS) - at + 1
    assert restored(backup, "mine://x") == 9
    assert kept(server) == kept_at(backup)
    with pytest.raises(errors.InvalidRequest, match="not empty"):
        restored(backup, "mine://x")


def test_another_backup_is_not_put_among_what_came_of_one(
    backup: Path, server: Ending, tmp_path: Path
):
    server.left = 2
    with pytest.raises(errors.Unavailable):
        restored(backup, "mine://x")
    before = kept(server)
    with holdfast.connect(tmp_path / "c.db", tenant="hooli") as hf:
        whole.said(hf, "s", "ada", "words")
        other = hf.admin.backup(tmp_path / "other.db")
    with pytest.raises(errors.InvalidRequest, match="not empty"):
        restored(other, "mine://x")
    assert kept(server) == before
