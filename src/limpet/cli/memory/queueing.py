"""`limpet memory queue`: ended conversations on their way to memory, and those that were given up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from limpet import errors
from limpet.cli import again, exits, figures, target, visible
from limpet.cli.options import Common
from limpet.cli.surface import Face, Surface
from limpet.core.values import ids

if TYPE_CHECKING:
    from collections.abc import Sequence

    from limpet.jobs.memory_queue import QueuedOffload


def run(replay: str | None, common: Common) -> int:
    """Print what waits and what was given up, and how much no worker has read; with `replay` have it tried again first."""
    surface = Surface(as_json=common.json, quiet=common.quiet)
    with target.opened(common) as lp:
        replayed = None
        if replay is not None:
            replayed = lp.memory.replay(None if replay == "all" else replay)
            if not replayed and replay != "all":
                raise exits.Failure(_unknown(replay))
        queue, behind = lp.memory.queue(), lp.memory.behind()
    if surface.face is Face.JSON:
        rows = [
            {**{name: getattr(one, name) for name in one.__struct_fields__ if name != "retry_us"},
             "retry_at": _at(one)} for one in queue
        ]  # fmt: skip
        surface.document({"queue": rows, "behind": behind, "replayed": replayed})
        return exits.DONE
    if replayed is not None:
        surface.note(f"{figures.count(replayed, 'conversation')} will be tried again.")
    if surface.face is Face.PIPE:
        for one in queue:
            state = "dead" if one.dead else "waiting"
            surface.row(
                one.key, state, one.session_id, one.generation, one.tries, _at(one), one.error
            )
    elif queue:
        _table(surface, queue)
        if any(one.dead for one in queue):
            command = again.command("memory queue", "--replay", "all", on=common.on)
            surface.note(f"To try again what was given up: {command}")
    if behind:
        surface.note(_unread(behind, common))
    elif not queue:
        surface.note(
            "Nothing waits. Conversations come here when they end, and go when memory has them."
        )
    return exits.DONE


def _unread(behind: int, common: Common) -> str:
    """Say that there may be more: nobody has looked yet for what ended."""
    wait = "waits" if behind == 1 else "wait"
    command = again.command("worker", "--once", on=common.on)
    return (
        f"{figures.count(behind, 'event')} of the log {wait} for a worker,"
        f" which finds the conversations that have ended: {command}"
    )


def _unknown(key: str) -> exits.Problem:
    return exits.Problem(
        exits.NOT_FOUND,
        errors.NotFound.code,
        f"{key!r} is no conversation that was given up.",
        "Each has its whole key in the list, in its first column.",
        "",
        command=("memory queue",),
    )


def _at(one: QueuedOffload) -> str | None:
    return ids.iso(one.retry_us) if one.retry_us else None


def _table(surface: Surface, queue: Sequence[QueuedOffload]) -> None:
    from rich.text import Text  # noqa: PLC0415 - only a terminal pays for rich

    rows = [
        [
            Text(visible.line(one.key), style="cyan"),
            Text("given up" if one.dead else "waiting", style="red" if one.dead else ""),
            Text(f"{one.tries}"),
            Text(_at(one) or ""),
            Text(one.error or ""),
        ]
        for one in queue
    ]
    surface.listed(["KEY", "STATE", ">TRIES", "NEXT TRY", "ERROR"], rows)
