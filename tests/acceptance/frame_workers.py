"""Processes that push under one parent until nothing is left of it. Each notes what it was told in a file."""

from __future__ import annotations

import json
import os
import random
import traceback
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import limpet
from limpet import FrameStatus, Scope, errors

SMALLEST = 1


def push_until_refused(path: str, parent: str, name: str, pops: bool, notes: str, barrier: Barrier) -> None:
    """Push children of any size, ever smaller ones when refused, until the smallest is refused too."""
    file = os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        with limpet.connect(path) as lp:
            barrier.wait(300)
            _push(lp, parent, name, pops, file)
        note(file, end=True)
    except BaseException:
        note(file, fault=traceback.format_exc())


def _push(lp: limpet.Limpet, parent: str, name: str, pops: bool, file: int) -> None:
    rng, mine, size, number = random.Random(name), list[str](), 64, 0
    while True:
        number += 1
        before = lp.index.get_tree(parent).version
        amount, frame_id = rng.randint(SMALLEST, size), f"{name}-{number}"
        note(file, asks=frame_id)
        try:
            child = lp.index.push_frame(
                Scope(name), goal="part", budget=amount, parent_frame_id=parent, frame_id=frame_id
            )
        except errors.InsufficientTokens as error:
            after = lp.index.get_tree(parent).version
            note(file, refused=dict(error.facts), asked=amount, before=before, after=after)
            if amount == SMALLEST and not mine:
                return
            size = max(SMALLEST, amount // 2)
        else:
            note(file, pushed=child.frame_id, total=amount)
            mine.append(child.frame_id)
        if pops and mine and rng.random() < 0.5:
            _pop(lp, mine.pop(rng.randrange(len(mine))), rng, file)
        elif not pops:
            mine.clear()


def _pop(lp: limpet.Limpet, frame_id: str, rng: random.Random, file: int) -> None:
    """Close a child that spent most of what it had, or a little more."""
    total = lp.index.get_frame(frame_id).budget.total
    used = rng.choice([total // 2, total, total + 3])
    lp.index.record_usage(frame_id, used)
    lp.index.pop_frame(frame_id, rng.choice([FrameStatus.COMPLETED, FrameStatus.FAILED]))
    note(file, popped=frame_id, used=used)


def note(file: int, **what: Any) -> None:
    os.write(file, json.dumps(what).encode() + b"\n")


def read(notes: Path) -> list[dict[str, Any]]:
    """What a process noted; one that was killed may have left half a line."""
    lines = notes.read_bytes().split(b"\n") if notes.exists() else [b""]
    return [json.loads(line) for line in lines[:-1]]
