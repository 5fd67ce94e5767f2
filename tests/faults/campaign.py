"""Many recorded runs, each with many crash images judged, in several processes.

Short runs with different seeds judge faster than one long run and reach more different moments. The
interleaving of the two writers is the machine's, not the seed's, so the operations of a run that
found something are kept: with them an image can be made again from its cut.
"""

from __future__ import annotations

import multiprocessing
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from limpet.stores.files import folder as store_folder
from tests.faults import images, oracle, recorded_run, results
from tests.faults.images import Image, Planned
from tests.faults.journal import Journal

WORKERS = 2
STEPS = 60


@dataclass(frozen=True, slots=True)
class Run:
    """A run to be made and judged: in which folder, how many images at least, which bug in it."""

    folder: Path
    seed: int
    wanted: int
    plant: str = ""
    backend: str = "sqlite"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How many images a run gave, and what was wrong with the first bad one."""

    seed: int
    images: int
    operations: int
    fault: str = ""


def judge_all(runs: Sequence[Run]) -> Iterator[Outcome]:
    """Make and judge every run."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(WORKERS, mp_context=context) as pool:
        yield from pool.map(judge, runs)


def judge(run: Run) -> Outcome:
    """Make a run and judge its images until one is bad."""
    folder = Path(tempfile.mkdtemp(dir=run.folder))
    ops = recorded_run.record(folder, seed=run.seed, steps=STEPS, plant=run.plant, backend=run.backend)
    journal = recorded_run.journal_of(ops)
    plan = images.plan(ops, run.wanted, run.seed)
    rendered = images.render(ops, [planned.cut for planned in plan])
    for planned, (_, image) in zip(plan, rendered, strict=True):
        what = _faults(folder / "image", image, planned, journal, run.backend)
        if what:
            fault = f"{planned}: {'; '.join(what)}"
            if not run.plant:
                log = results.keep_evidence(folder / recorded_run.LOG, f"{run.seed}.operations")
                fault = f"{log}, {fault}"
            return Outcome(run.seed, len(plan), len(ops), fault)
    shutil.rmtree(folder)
    return Outcome(run.seed, len(plan), len(ops))


def laid_out(folder: Path, image: Image, backend: str) -> Path:
    """Put an image on the disk, in a new folder; return where its names begin."""
    root = folder if backend == "sqlite" else folder / "state"
    root.mkdir(parents=True)
    for name in recorded_run.FOLDERS if backend == "files" else ():
        (root / name).mkdir()
    for name, content in image.items():
        (root / name).write_bytes(content)
    return root


def _faults(folder: Path, image: Image, planned: Planned, journal: Journal, backend: str) -> list[str]:
    try:
        root = laid_out(folder, image, backend)
        known = journal.between(planned.first, planned.last)
        faults = [
            f"{path.name} can't be read"
            for path in (root / "sessions").glob("*.json")
            if store_folder.decode_document(path.read_bytes()) is None
        ]
        return [*faults, *oracle.check(recorded_run.url(folder, backend), known).faults]
    except Exception as error:
        return [f"{type(error).__name__}: {error}"]
    finally:
        shutil.rmtree(folder)
