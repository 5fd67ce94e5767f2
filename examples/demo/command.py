"""`limpet demo`: a place for the night, the night itself, and what to look at afterwards."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from demo import director, keeper, logbook, seasons
from demo import relief as reliefs
from demo.agent import loop
from demo.director import Night
from demo.stage import Stage
from limpet.cli import exit_codes, hints
from limpet.cli.options import OutputOptions
from limpet.cli.output import Output, OutputMode
from limpet.cli.subcommands import store_commands

PACE_S = 0.4


def run(
    *,
    keep: str | None,
    fast: bool,
    printing: OutputOptions,
    actor: Sequence[str] = director.KEEPER,
    book: Sequence[str] = director.LOGBOOK,
    relief: Sequence[str] = seasons.RELIEF,
) -> int:
    """Play the demo; return 0 only if every claim was checked and held."""
    surface = Output(printing)
    watched = surface.mode is OutputMode.TERMINAL and sys.stdout.isatty() and not fast
    pace_s = PACE_S if watched else 0.0
    stage = Stage(surface, pace_s=pace_s)
    with _folder(keep) as folder:
        night = director.play(folder, stage, pace_s=pace_s, actor=actor, book=book, relief=relief)
        _end(stage, surface, night, folder if keep is not None else None)
        if surface.mode is OutputMode.JSON:
            surface.print_json(_document(night, folder if keep is not None else None))
    return exit_codes.DONE if night.ok else exit_codes.FAILED


@contextlib.contextmanager
def _folder(keep: str | None) -> Iterator[Path]:
    """Yield an empty folder: a new one that stays, or one that is removed with what was made in it."""
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="limpet-demo-") as made:
            yield Path(made)
        return
    folder = Path(keep).expanduser()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise exit_codes.failure(
            exit_codes.UNSAFE,
            "target_exists",
            f"{folder} is not a new or empty folder.",
            "The demo writes a store and the keeper's files, and overwrites nothing.",
            hints.command_line("demo", *hints.option_words("--keep", _beside(folder))),
        )
    folder.mkdir(parents=True, exist_ok=True)
    yield folder


def _beside(folder: Path) -> Path:
    """Return the name of a folder beside it that is not there yet; within it, if it has no name itself."""
    folder = folder if folder.name else folder / "demo"
    number = 2
    while (free := folder.with_name(f"{folder.name}-{number}")).exists():
        number += 1
    return free


def _end(stage: Stage, surface: Output, night: Night, kept: Path | None) -> None:
    stage.line()
    for name, value in store_commands.status_lines(night.facts, surface.symbols)[1:5]:
        stage.named(name, value)
    stage.chapter("What next")
    store = (kept or Path("night")) / "state.db"
    if kept is None:
        stage.named("look", hints.command_line("demo", "--keep", "night"))
    on = hints.store_options(str(store), "default")
    commands = [
        hints.command_line("sessions show", named=keeper.SESSION, on=on),
        hints.command_line("frames tree", named=keeper.WORKS[0].id, on=on),
        hints.command_line("suspensions list", "--all", on=on),
        hints.command_line("context", "--recorded", named=logbook.SESSION, on=on),
        hints.command_line("memory list", named=reliefs.USER, on=on),
        hints.command_line("search", "--user", reliefs.USER, named="tea", on=on),
    ]
    if kept is not None:
        commands += [hints.command_line(word, named=str(store)) for word in ("status", "verify")]
    for number, command in enumerate(commands):
        stage.named("look" if kept is not None and not number else "", command)
    if kept is not None:
        stage.named("files", f"{kept}: outbox, bell.log, journal.txt, stores.csv")
    stage.named("read", f"{loop.__file__} is the agent's loop")
    stage.line()


def _document(night: Night, kept: Path | None) -> dict[str, object]:
    return {
        "ok": night.ok,
        "store": str(kept / "state.db") if kept is not None else None,
        "session": keeper.SESSION,
        "killed": night.killed,
        "approvals": night.approvals,
        "acknowledged": night.acknowledged,
        "pending": night.pending,
        "window": night.window,
        "claims": [claim._asdict() for claim in night.claims],
        "status": night.facts,
    }
