"""Words that nobody else would say, put wherever a caller's text goes, and searched for in every byte of a folder."""

import itertools
import re
from pathlib import Path

import limpet
from limpet import ContextHandle, Scope
from limpet.frames import HandleType
from limpet.wiring import Limpet

WORDS = re.compile(rb"(?:kestrel|marmot)\d{4}")


class Canaries:
    """Gives canaries, each another one."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self.count = 0

    def __call__(self) -> str:
        self.count = next(self._numbers)
        return f"Kestrel{self.count:04d} MARMOT{self.count:04d}"


def found(folder: Path) -> dict[str, int]:
    """Return the files that have a word of a canary, however it is written, and how many there are."""
    every = ((f.name, len(set(WORDS.findall(f.read_bytes().lower())))) for f in folder.iterdir())
    return {name: count for name, count in every if count}


def fill(lp: Limpet, user_id: str, c: Canaries, least: int) -> list[str]:
    """Put canaries of one user into a store, at least so many; return the ids of the sessions."""
    ids: list[str] = []
    while c.count < least:
        session_id = c()
        ids.append(session_id)
        session = lp.sessions.create_session(
            session_id, user_id=user_id, system=c(), title=c(), metadata={c(): c(), "deep": [c()]}, key=c()
        )  # fmt: skip
        call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": f'{{"q": "{c()}"}}'}}  # fmt: skip
        session.add_message(limpet.Message("user", c(), id=c(), metadata={"x": c()}), key=c())
        window = session.window(2_000)
        session.add_message({"role": "assistant", "content": c(), "tool_calls": [call]}, window=window)
        session.add_message({"role": "tool", "tool_call_id": "call_1", "content": c()})
        session.add_message({"role": "user", "content": f"{c()} " * 2_500})
        for _ in range(12):
            session.add_message({"role": "user", "content": c()})
        session.trimmed(60, summary="en")
        frames(lp, session_id, c)
        ids.append(lp.sessions.fork_session(session_id, new_id=c(), title=c()).id)
        ids.append(lp.sessions.create_continuation_session(session).id)
        lp.sessions.update_session(session_id, title=c(), metadata={"later": c()})
    return ids


def frames(lp: Limpet, session_id: str, c: Canaries) -> None:
    """Put canaries into a tree of frames that is about a session."""
    scope = Scope(actor_id=c(), session_id=session_id)
    root = lp.index.push_frame(scope, goal=c(), inputs={"a": c()}, budget=50_000, key=c())
    lp.index.add_context_handle(
        root.frame_id, ContextHandle(handle_id=c(), handle_type=HandleType.DOCUMENT, description=c(), content=c() * 300)
    )
    lp.index.assemble_context_pack(scope, frame_id=root.frame_id, system_prompt=c())
    token = lp.index.suspend_frame(root.frame_id, reason=c(), payload={"ask": c()})
    lp.index.resume_frame(token, payload=c())
    child = lp.index.push_frame(scope, goal=c(), parent_frame_id=root.frame_id, budget=1_000)
    lp.index.pop_frame(child.frame_id, result_summary=c())
