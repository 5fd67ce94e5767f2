"""The keeper's tools. They do what they say: they read and write files of the station's folder."""

from __future__ import annotations

import csv
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Tell = Callable[[str, int], None]
"""Called while a tool works: what it did, and how often."""


class Station:
    """A lighthouse in a folder: a store room (CSV), an outbox, a bell with its own log, a journal."""

    def __init__(
        self, folder: Path, *, tell: Tell, jams_after: int = 0, pace_s: float = 0.0
    ) -> None:
        self._folder = folder
        self._tell = tell
        self._jams_after = jams_after
        self._pace_s = pace_s

    def build(self) -> None:
        """Furnish the station, once."""
        (self._folder / "outbox").mkdir()
        with (self._folder / "stores.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("item", "amount"), ("oil, litres", 42), ("wicks", 11)])

    def read_stores(self) -> dict[str, int]:
        """Read the store room's list."""
        with (self._folder / "stores.csv").open(newline="") as file:
            return {row["item"]: int(row["amount"]) for row in csv.DictReader(file)}

    def burning_time(self, litres: float, litres_per_hour: float) -> str:
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

    def ring_bell(self, strokes: int) -> str:
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

    def read_bell_log(self) -> dict[str, int]:
        """Count the strokes that the bell's own log has."""
        return {"strokes": len((self._folder / "bell.log").read_text().split())}

    def write_journal(self, entry: str) -> str:
        """Write tonight's page of the journal."""
        return f"{(self._folder / 'journal.txt').write_text(entry + chr(10))} characters written"


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A tool as the agent knows it: what it does, and whether the same call may be made again.

    A keyed tool is handed the call's id, and has one effect however often it is called with it.
    """

    do: Callable[..., Any]
    repeatable: bool = True
    keyed: bool = False

    def use(self, station: Station, call_id: str, args: Mapping[str, Any]) -> Any:
        """Do it; return what it gave."""
        return self.do(station, **args, key=call_id) if self.keyed else self.do(station, **args)


TOOLS: Mapping[str, Tool] = {
    "read_stores": Tool(do=Station.read_stores),
    "burning_time": Tool(do=Station.burning_time),
    "send_telegram": Tool(do=Station.send_telegram, keyed=True),
    "ring_bell": Tool(do=Station.ring_bell, repeatable=False),
    "read_bell_log": Tool(do=Station.read_bell_log),
    "write_journal": Tool(do=Station.write_journal),
}
