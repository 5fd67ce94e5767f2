"""`limpet migrate` and `limpet restore`: a store from one place to another."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from limpet import errors
from limpet.cli import again, exits, figures, target
from limpet.cli.options import Common, Printing
from limpet.cli.surface import Face, Surface
from limpet.stores import urls

if TYPE_CHECKING:
    from limpet.admin.migrate import Migrated


def migrate(source: str, goal: str, printing: Printing, *, verify: bool) -> int:
    """Copy a store into another; exit 5 if the source has grown since."""
    surface = Surface(as_json=printing.json, quiet=printing.quiet)
    common = Common(json=printing.json, quiet=printing.quiet, url=source)
    started = time.monotonic()
    with (
        surface.repeatable(),
        target.opened(common) as lp,
        surface.progress("copying and checking events") as bar,
        _cut_short("migrate", source, goal),
    ):
        moved = lp.admin.migrate(_named(goal), verify=verify, progress=bar)
    _show(surface, ("moved", source, goal), moved, time.monotonic() - started)
    if not moved.behind:
        surface.note(f"See what it holds: {again.command('status', named=goal)}")
        return exits.DONE
    late = figures.count(sum(moved.behind.values()), "event")
    surface.note(
        f"{urls.without_password(source)} has got {late} since. Stop who writes there, then repeat:"
    )
    surface.note(f"{again.command('migrate', goal, named=source)}  (exit {exits.CONFLICT})")
    return exits.CONFLICT


def restore(backup: str, goal: str, printing: Printing, *, verify: bool) -> int:
    """Put a backup into an empty store."""
    from limpet.wiring import backup_restore  # noqa: PLC0415 - only whoever restores pays for it

    surface = Surface(as_json=printing.json, quiet=printing.quiet)
    started = time.monotonic()
    target.must_exist(backup)
    with (
        surface.repeatable(),
        _cut_short("restore", backup, goal),
        surface.progress("copying and checking") as bar,
    ):
        moved = backup_restore.restore(backup, _named(goal), bar, verify=verify)
    _show(surface, ("restored", backup, goal), moved, time.monotonic() - started)
    surface.note(f"See what it holds: {again.command('status', named=goal)}")
    return exits.DONE


@contextlib.contextmanager
def _cut_short(command: str, source: str, goal: str) -> Iterator[None]:
    """Let an error that ends a copy say what it leaves, and how to go on."""
    try:
        yield
    except errors.Unavailable as error:
        problem = exits.of_error(error)
        why = "What has come so far is kept; nobody can open the target until all of it is there."
        before = problem.next.replace("Repeat the command.", "").strip()
        then = (
            f"{before} Run the same again, it goes on: {again.command(command, goal, named=source)}"
        )
        raise exits.Failure(problem._replace(why=why, next=then.lstrip(), command=())) from error
    except errors.Conflict as error:
        why = "The target is not empty: it has a log of its own. Nothing was changed."
        raise exits.Failure(exits.of_error(error)._replace(why=why)) from error
    except errors.Error as error:
        raise exits.Failure(exits.of_error(error)) from error


def _named(goal: str) -> str:
    if urls.scheme_of(goal) == "volatile":
        told = "volatile: names a store in the memory of one process; nothing put there would last."
        raise exits.Failure(
            exits.Problem(
                exits.USAGE, "no_target", told, "Nothing was done.", "Name a file, or a server."
            )
        )
    return goal


def _show(surface: Surface, what: tuple[str, str, str], moved: Migrated, seconds: float) -> None:
    did, source, goal = (urls.without_password(each) for each in what)
    if surface.face is Face.JSON:
        document = {"source": source, "target": goal, **msgspec.to_builtins(moved)}
        surface.document({**document, "seconds": round(seconds, 3)})
    elif surface.face is Face.PIPE:
        surface.row(goal, moved.tenants, moved.events, moved.copied, sum(moved.behind.values()))
    else:
        checked = "verified" if moved.verified else "not verified"
        surface.console.print(f"{surface.glyphs.good} {did}", style="bold green", end="")
        surface.console.print(
            f"   {figures.count(moved.events, 'event')} of {figures.count(moved.tenants, 'tenant')}"
            f" to {goal}, {checked} ({seconds:.1f} s)"
        )
