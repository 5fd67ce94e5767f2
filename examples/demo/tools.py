"""The keeper's tools. They do what they say: they read and write files of the station's folder."""

from __future__ import annotations

import csv
import time
from collections.abc import Callable
from pathlib import Path

from demo.agent.parts import Tool
from limpet.frames import ToolEffect

Tell = Callable[[str, int], None]
"""Called while a tool works: what it did, and how often."""


class Station:
    """A lighthouse in a folder: a store room (CSV), an outbox, a bell with its own log, a journal."""

    def __init__(self, folder: Path, *, tell: Tell, jams_after: int = 0, pace_s: float = 0.0) -> None:
        self._folder = folder
        self._tell = tell
        self._jams_after = jams_after
        self._pace_s = pace_s

    def build(self) -> None:
        """Furnish the station, once."""
        (self._folder / "outbox").mkdir(exist_ok=True)
        with (self._folder / "stores.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("item", "amount"), ("oil, litres", 42), ("wicks", 11)])

    def read_stores(self, *, key: str) -> dict[str, int]:
        """Read the store room's list."""
        with (self._folder / "stores.csv").open(newline="") as file:
            return {row["item"]: int(row["amount"]) for row in csv.DictReader(file)}

    def burning_time(self, litres: float, litres_per_hour: float, *, key: str) -> str:
        """Work out how long the lamp burns."""
        minutes = round(litres / litres_per_hour * 60)
        return f"{minutes // 60} h {minutes % 60} min"

    def send_telegram(self, to: str, text: str, *, key: str) -> str:
        """Put a telegram into the outbox. Its file is named by the key: sent again, it is the same one."""
        try:
            with (self._folder / "outbox" / f"{key}.txt").open("x") as file:
                file.write(f"to {to}: {text}\n")
        except FileExistsError:
            return f"telegram to {to} had been sent already; not sent again"
        self._tell("telegram", 1)
        return f"telegram sent to {to}"

    def ring_bell(self, strokes: int, *, key: str) -> str:
        """Ring the bell. What has been rung can't be taken back, and ringing again is heard again."""
        for stroke in range(1, strokes + 1):
            with (self._folder / "bell.log").open("a") as log:
                log.write("dong\n")
            self._tell("stroke", stroke)
            time.sleep(self._pace_s)
            # Telling again and again ends a keeper that nobody listens to any more.
            while stroke == self._jams_after:
                self._tell("jammed", stroke)
                time.sleep(1)
        return f"rang {strokes} strokes"

    def read_bell_log(self, *, key: str) -> int:
        """Count the strokes that the bell's own log has."""
        return len((self._folder / "bell.log").read_text().split())

    def write_journal(self, entry: str, *, key: str) -> str:
        """Write tonight's page of the journal."""
        return f"{(self._folder / 'journal.txt').write_text(entry + chr(10))} characters written"


def keepers(station: Station) -> dict[str, Tool]:
    """Return the keeper's tools. Nobody rings the bell before somebody has said yes."""
    return {
        "send_telegram": Tool(station.send_telegram, ToolEffect.IDEMPOTENT),
        "ring_bell": Tool(station.ring_bell, ToolEffect.DESTRUCTIVE),
        "read_bell_log": Tool(station.read_bell_log, ToolEffect.PURE),
        "write_journal": Tool(station.write_journal, ToolEffect.IDEMPOTENT),
    }


def storekeepers(station: Station) -> dict[str, Tool]:
    """Return the tools of the store room."""
    return {
        "read_stores": Tool(station.read_stores, ToolEffect.PURE),
        "burning_time": Tool(station.burning_time, ToolEffect.PURE),
    }
