"""`limpet backup`: a consistent copy, made while others write."""

from __future__ import annotations

import time
from pathlib import Path

from limpet.cli import again, exits, figures, target
from limpet.cli.options import Common
from limpet.cli.surface import Face, Surface
from limpet.stores import urls


def run(copy: str, common: Common) -> int:
    """Copy the store to a file that does not exist yet."""
    surface = Surface(as_json=common.json, quiet=common.quiet)
    url = target.named(common.url)
    if not copy:
        raise exits.Failure(_nameless())
    if (there := urls.local_path(copy)).exists():
        raise exits.Failure(_exists(there, common))
    started = time.monotonic()
    with (
        surface.repeatable(),
        target.opened(common) as lp,
        surface.progress("copying pages") as bar,
    ):
        made = lp.admin.backup(copy, bar)
    seconds, size = time.monotonic() - started, made.stat().st_size
    if surface.face is Face.JSON:
        surface.document(
            {"store": url, "target": copy, "bytes": size, "seconds": round(seconds, 3)}
        )
    elif surface.face is Face.PIPE:
        surface.row(copy, size)
    else:
        surface.console.print(f"{surface.glyphs.good} {copy}", style="bold green", end="")
        surface.console.print(f"   {figures.size(size)}, copied from {url} in {seconds:.1f} s")
    surface.note(f"Check it with: {again.command('verify', named=copy)}")
    return exits.DONE


def _nameless() -> exits.Problem:
    return exits.Problem(
        exits.USAGE, "usage", "the name of the backup is empty.", "Nothing was done.", "Name a new file."
    )  # fmt: skip


def _exists(path: Path, common: Common) -> exits.Problem:
    kind = "folder" if path.is_dir() else "file"
    held = "" if path.is_dir() else f" of {figures.size(path.stat().st_size)}"
    return exits.Problem(
        exits.UNSAFE,
        "target_exists",
        f"{path} exists already.",
        f"It is a {kind}{held}, and a backup never overwrites.",
        again.command("backup", named=str(target.beside(path)), on=common.on),
    )
