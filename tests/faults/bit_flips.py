"""Asks a damaged store everything, and compares the answers with those of the sound one."""

from __future__ import annotations

import gc
import multiprocessing
import signal
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from types import FrameType

from limpet.stores import sqlite
from tests.faults import planted, public_reads, small_store
from tests.faults.damage import Damage, Files
from tests.faults.public_reads import RAISED, Answers

WORKERS = 2
SHARE = 100
HANG_S = 20


class Truth:
    """The undamaged store: its files, its sessions, and what its reads say."""

    def __init__(self, folder: Path) -> None:
        (folder / "made").mkdir()
        (folder / "asked").mkdir()
        self.folder = folder
        self.files, self.sessions = small_store.make(folder / "made")
        self.answers = self.ask(folder / "asked", self.files)
        assert RAISED not in self.answers.values()
        self.shm = self.files.pop(f"{small_store.STORE}-shm")

    def ask(self, folder: Path, files: Files) -> Answers:
        """What the reads say of these files."""
        for path in folder.iterdir():
            path.unlink()
        for name, content in files.items():
            (folder / name).write_bytes(content)
        return public_reads.ask(folder / small_store.STORE, self.sessions)


def unnoticed(truth: Truth, plant: str, kept: Files, share: Sequence[Damage]) -> list[str]:
    """The damages of a share after which a read gives a wrong answer, or the wrong exception."""
    planted.plant(plant)
    # To ask for the file system's type each time is a sixth of the work, and nothing is proved by it.
    sqlite.StoreFiles.file_system_type = lambda self, path: ""
    signal.signal(signal.SIGALRM, _hang)
    gc.freeze()
    with tempfile.TemporaryDirectory(dir=truth.folder) as folder:
        return [
            f"{each}: {fault}"
            for each in share
            if (fault := _fault(truth, Path(folder), {**each.to(truth.files), **kept}))
        ]


def _hang(signum: int, frame: FrameType | None) -> None:
    raise TimeoutError(f"no answer after {HANG_S} s")


def _fault(truth: Truth, folder: Path, files: Files) -> str:
    signal.alarm(HANG_S)
    try:
        answers = truth.ask(folder, files)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        signal.alarm(0)
    wrong = [name for name, said in answers.items() if said not in (RAISED, truth.answers.get(name))]
    if not wrong and answers.get("verify") != RAISED and RAISED in answers.values():
        wrong = [] if answers == {"open": RAISED} else ["verify, which found nothing"]
    return ", ".join(wrong)


def changed_by_refusal(truth: Truth, damages: Iterable[Damage]) -> list[str]:
    """The damages after which the store refused to open, but not without changing its files."""
    found: list[str] = []
    with tempfile.TemporaryDirectory(dir=truth.folder) as name:
        folder = Path(name)
        for each in damages:
            files = each.to(truth.files)
            refused = truth.ask(folder, files) == {"open": RAISED}
            left = {path.name: path.read_bytes() for path in folder.iterdir()}
            changed = [file for file, content in files.items() if left.get(file) != content]
            if refused and changed:
                found.append(f"{each}: {', '.join(changed)}")
    return found


def all_unnoticed(
    truth: Truth, damages: Iterable[Damage], *, plant: str = "", kept: Files | None = None, enough: int = 20
) -> tuple[int, list[str]]:
    """How many damages were done, and those that went unnoticed; stops after `enough` of these."""
    rest = iter(damages)
    shares = list(iter(lambda: list(islice(rest, SHARE)), []))
    found: list[str] = []
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(WORKERS, mp_context=context) as pool:
        for silent in pool.map(partial(unnoticed, truth, plant, kept or {}), shares):
            found.extend(silent)
            if len(found) >= enough:
                pool.shutdown(cancel_futures=True)
                break
    return sum(map(len, shares)), found
