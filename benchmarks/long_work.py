"""What `benchmarks.long` has other processes do: fill a store, and look into it. Prints JSON."""

import asyncio
import json
import random
import resource
import sys
import time

import limpet
from benchmarks import harness

MESSAGES = 9
"""Of each session; with its creation that makes ten events."""
USERS = 1_000
TOGETHER = 200
OPENED = 2_000
PAGES = 300
PAGE = 50


def fill(url: str, sessions: int) -> dict[str, object]:
    began = time.perf_counter()
    asyncio.run(_fill(url, sessions))
    return {"seconds": time.perf_counter() - began}


async def _fill(url: str, sessions: int) -> None:
    async with limpet.connect_async(url) as store:
        for start in range(0, sessions, TOGETHER):
            numbers = range(start, min(start + TOGETHER, sessions))
            await asyncio.gather(*(_talk(store, number) for number in numbers))
            if start % (TOGETHER * 100) == 0:
                harness.progress(f"{start:,} of {sessions:,} sessions")


async def _talk(store: limpet.AsyncLimpet, number: int) -> None:
    session = await store.sessions.create_session(f"s-{number}", user_id=f"user-{number % USERS}", title="A trip")
    await session.add_messages(
        [
            {"role": ("user", "assistant")[turn % 2], "content": f"Sailing {number}, part {turn}."}
            for turn in range(MESSAGES)
        ]
    )


def look(url: str, sessions: int) -> dict[str, object]:
    dice = random.Random(1)
    opened: list[float] = []
    pages: list[float] = []
    with limpet.connect(url) as store:
        store.sessions.get_session("s-0")
        for number in (dice.randrange(sessions) for _ in range(OPENED)):
            began = time.perf_counter()
            session = store.sessions.get_session(f"s-{number}")
            opened.append((time.perf_counter() - began) * 1_000)
            assert session.message_count == MESSAGES
        for number in (dice.randrange(USERS) for _ in range(PAGES)):
            began = time.perf_counter()
            page = store.sessions.list_sessions(user_id=f"user-{number}", limit=PAGE)
            pages.append((time.perf_counter() - began) * 1_000)
            assert len(page) == min(PAGE, sessions // USERS)
    return {"opened_ms": opened, "pages_ms": pages}


def main() -> None:
    what, url, sessions = sys.argv[1:]
    told = {"fill": fill, "look": look}[what](url, int(sessions))
    told["resident_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    print(json.dumps(told))


if __name__ == "__main__":
    main()
