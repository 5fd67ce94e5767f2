"""Bytes on disk, after closing, against the messages' own JSON."""

from pathlib import Path

from benchmarks import ours
from benchmarks.harness import Bench, Figure
from benchmarks.loads import Load


def run(bench: Bench) -> list[Figure]:
    figures: list[Figure] = []
    for load in bench.loads:
        for layout, store in (("end to end", _one_session), ("a session each", _many_sessions)):
            path = bench.ram / f"{load.name}-{layout.replace(' ', '-')}.db"
            store(path, load)
            figures.append(_figure(path, load, layout))
    return figures


def _one_session(path: Path, load: Load) -> None:
    with ours.connect(path) as store:
        session = store.sessions.create_session(user_id="ada")
        for conversation in load.conversations:
            for message in conversation:
                session.add_message(message)


def _many_sessions(path: Path, load: Load) -> None:
    with ours.connect(path) as store:
        for conversation in load.conversations:
            session = store.sessions.create_session(user_id="ada")
            for message in conversation:
                session.add_message(message)


def _figure(path: Path, load: Load, layout: str) -> Figure:
    stored = ours.stored_bytes(path)
    plain = load.json_bytes()
    return Figure(
        name=f"bytes on disk, {load.name}, {layout}: of the messages' JSON",
        value=stored / plain,
        unit="x",
        at_most=2.0,
        beside={"KiB": round(stored / 1024), "JSON KiB": round(plain / 1024)},
    )
