"""The model of the disk itself: what it must keep, and what it must be able to lose."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults import images
from tests.faults.oplog import Kind, Op, OpLog, read

OLD, NEW = b"o" * 2048, b"n" * 2048
MADE = [Op(Kind.CREATE, 1, data=b"a"), Op(Kind.DIRSYNC)]
SYNCED = [*MADE, Op(Kind.WRITE, 1, 0, data=OLD), Op(Kind.SYNC, 1)]


def contents(ops: list[Op], name: str = "a", draws: int = 400) -> set[bytes | None]:
    cuts = [images.Cut(len(ops), seed) for seed in range(draws)]
    return {image.get(name) for _, image in images.render(ops, cuts)}


def test_synced_bytes_are_always_there() -> None:
    assert contents(SYNCED) == {OLD}


def test_an_unsynced_write_can_be_there_not_there_or_torn_at_any_sector() -> None:
    found = contents([*SYNCED, Op(Kind.WRITE, 1, 0, data=NEW)])
    assert {OLD, NEW} <= found
    assert len(found) == 2**4
    for content in found - {None}:
        assert content is not None
        assert all(len(set(content[at : at + 512])) == 1 for at in range(0, 2048, 512))


def test_later_writes_can_arrive_without_earlier_ones() -> None:
    writes = [Op(Kind.WRITE, 1, 2048 * at, data=NEW) for at in (1, 2)]
    assert OLD + bytes(2048) + NEW in contents([*SYNCED, *writes])


def test_files_are_reordered_among_one_another() -> None:
    ops = [
        *SYNCED,
        Op(Kind.CREATE, 2, data=b"b"),
        Op(Kind.SYNC, 2, flag=1),
        Op(Kind.WRITE, 1, 0, data=NEW),
        Op(Kind.WRITE, 2, 0, data=NEW),
    ]
    cuts = [images.Cut(len(ops), seed) for seed in range(400)]
    found = {(image["a"], image["b"]) for _, image in images.render(ops, cuts)}
    assert {(OLD, NEW), (NEW, b""), (OLD, b""), (NEW, NEW)} <= found


def test_a_name_is_sure_only_after_a_sync_of_the_directory() -> None:
    made = [Op(Kind.CREATE, 1, data=b"a"), Op(Kind.WRITE, 1, 0, data=OLD), Op(Kind.SYNC, 1)]
    assert contents(made) == {None, OLD}
    renamed = [*made, Op(Kind.DIRSYNC), Op(Kind.RENAME, data=b"a\0b")]
    assert contents(renamed, "b") == {None, OLD}
    assert contents([*renamed, Op(Kind.DIRSYNC)], "b") == {OLD}
    deleted = [*made, Op(Kind.DIRSYNC), Op(Kind.DELETE, data=b"a")]
    assert contents(deleted) == {None, OLD}


def test_images_are_distinct_and_follow_from_the_seed() -> None:
    ops = [*SYNCED, *(Op(Kind.WRITE, 1, 512 * at, data=NEW) for at in range(8))]
    plan = images.plan(ops, 40, seed=3)
    assert plan == images.plan(ops, 40, seed=3)
    rendered = [images.digest(image) for _, image in images.render(ops, [p.cut for p in plan])]
    assert len(set(rendered)) == len(rendered) >= 40


@pytest.mark.parametrize("processes", [1, 2])
def test_the_log_reads_back_in_order(tmp_path: Path, processes: int) -> None:
    logs = [OpLog(tmp_path / "ops") for _ in range(processes)]
    for at in range(10):
        logs[at % processes].add(Kind.WRITE, inode=at, offset=at * 7, data=bytes([at]) * at)
    for log in logs:
        log.close()
    assert read(tmp_path / "ops") == [Op(Kind.WRITE, at, at * 7, data=bytes([at]) * at) for at in range(10)]
