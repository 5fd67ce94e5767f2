"""`limpet verify`: is everything as it was written? Exit 7 and the list of faults if not."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from limpet import errors
from limpet.cli import again, exits, figures, target
from limpet.cli.options import Common
from limpet.cli.surface import Face, Surface
from limpet.stores import urls
from limpet.stores.port import Report
from limpet.wiring import store_schemes


def run(store: str | None, common: Common) -> int:
    """Check every event and page; change nothing."""
    surface = Surface(as_json=common.json, quiet=common.quiet)
    url = target.choose(target.given(store, common))
    started = time.monotonic()
    report = _check(url, surface, common.tenant)
    seconds = time.monotonic() - started
    if surface.face is Face.JSON:
        surface.document(
            {
                "store": urls.without_password(url),
                "ok": report.ok,
                "events": report.events,
                "tenants": report.tenants,
                "faults": list(report.faults),
                "notes": list(report.notes),
                "seconds": round(seconds, 3),
            }
        )
    elif surface.face is Face.PIPE:
        surface.row(
            "ok" if report.ok else "damage",
            report.events,
            len(report.faults),
            urls.without_password(url),
        )
        for fault in report.faults:
            surface.row("fault", fault)
        for note in report.notes:
            surface.row("note", note)
    else:
        _show(surface, report, url, seconds)
    if not report.ok:
        _advise(surface, url)
    return exits.DONE if report.ok else exits.DAMAGE


def _check(url: str, surface: Surface, tenant: str) -> Report:
    """Return the report; a store too damaged to open or to read through is a report as well."""
    seen = 0
    try:
        with _opened(url, tenant) as lp, surface.progress("reading events") as bar:

            def told(done: int, total: int) -> None:
                nonlocal seen
                seen = done
                bar(done, total)

            return lp.admin.verify(told)
    except errors.Corrupt as damage:
        return Report(seen, 0, (damage.message,))


@contextlib.contextmanager
def _opened(url: str, tenant: str) -> Iterator[target.Limpet]:
    lp = target.connect(url, tenant=tenant)
    try:
        yield lp
    finally:
        lp.close()


def _show(surface: Surface, report: Report, url: str, seconds: float) -> None:
    glyphs, events = surface.glyphs, figures.count(report.events, "event")
    if report.ok:
        surface.console.print(f"{glyphs.good} whole", style="bold green", end="")
        what = ", every link and blob"
        if store_schemes.is_files_store(url):
            what = ", every line of the journal and the index"
        elif target.file_of(url):
            what = ", every page and the anchor"
        surface.console.print(f"   {events}{what} are as they were written ({seconds:.1f} s)")
    else:
        surface.console.print(f"{glyphs.bad} damage", style="bold red", end="")
        surface.console.print(
            f"   {figures.count(len(report.faults), 'fault')} in {urls.without_password(url)}"
        )
    for fault in report.faults:
        surface.console.print(f"  {glyphs.dot} {fault}", soft_wrap=True)
    for note in report.notes:
        surface.console.print(f"  {glyphs.warn} {note}", style="yellow", soft_wrap=True)


def _advise(surface: Surface, url: str) -> None:
    shown = urls.without_password(url)
    if folder := store_schemes.files_folder(url) or (
        store_schemes.is_files_store(url) and Path(url)
    ):
        index = str(folder / ".index" / "state.db")
        saved = again.command("backup", "--url", index, named="saved.db")
        told = [
            "Nothing was changed. Put what is damaged of journal and blobs back from git or a backup.",
            f"If only the index is damaged, this makes it again: {again.command('rebuild', named=url)}",
            f"If only the journal is, this saves what the index has: {saved}",
        ]
    elif target.file_of(url):
        put_back = again.command("restore", "BACKUP", shown)
        told = [
            f"Nothing was changed. Keep {shown} and its -wal and -anchor files: move them away together,",
            f"and put an earlier backup in their place: {put_back}",
        ]
    else:
        told = [
            "Nothing was changed. Keep the data as it is, and restore an earlier backup into a new",
            f"store: {again.command('restore', 'BACKUP', 'URL')}",
        ]
    for line in told[:-1]:
        surface.note(line)
    surface.note(f"{told[-1]}  (exit {exits.DAMAGE})")
