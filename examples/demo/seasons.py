"""The relief comes twice: the first conversation is learnt by a worker, the second one begins with what it taught."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import limpet
from demo import relief, script
from demo.claims import Claim
from demo.stage import Stage

RELIEF: Final = (sys.executable, "-P", "-m", "demo.relief")
WORKER: Final = (sys.executable, "-P", "-m", "limpet", "worker", "--once", "--quiet", "--url")
PATIENCE_S: Final = 120.0


def play(folder: Path, stage: Stage, command: Sequence[str] = RELIEF) -> list[Claim]:
    """Have both conversations, a worker between them; return what was found to be true."""
    _done(*command, str(folder), "first")
    stage.chapter("In spring a relief comes. When he has gone, a worker reads what he said")
    _tell(folder, stage, relief.FIRST)
    _done(*WORKER, str(folder / "state.db"))
    _done(*command, str(folder), "second")
    stage.chapter("In autumn he is back: another process, a new session, the same user")
    _tell(folder, stage, relief.SECOND)
    checked = [learnt(folder), greeted(folder)]
    stage.line()
    for claim in checked:
        stage.verdict(claim.text, good=claim.held)
        stage.pause(0.5)
    return checked


def _done(*command: str) -> None:
    # What became of it is found out by the claims. In a group of its own, as the keeper is.
    subprocess.run(command, stdout=subprocess.DEVNULL, process_group=0, timeout=PATIENCE_S, check=False)


def _tell(folder: Path, stage: Stage, session_id: str) -> None:
    with limpet.connect(folder / "state.db") as lp:
        talk = lp.sessions.load_session(session_id)
        stage.line()
        for number, message in enumerate(talk.messages if talk else (), 1):
            stage.message(number, message.to_dict())
            stage.pause(0.5)


def learnt(folder: Path) -> Claim:
    """What is known of him names the message that said so, and nothing is known of anybody else by it."""
    with limpet.connect(folder / "state.db") as lp:
        facts = lp.memory.facts(relief.USER)
        talk = lp.sessions.load_session(relief.FIRST)
        messages = list(talk.messages) if talk else []
        said = {message.id for message in messages if message.role == "user"}
        others = lp.memory.facts("nobody")
    sources = {fact.source.message_id for fact in facts}
    text = f"{len(facts)} things are known of {relief.USER}, each with the message that said so"
    return Claim("learnt", text, len(facts) >= 2 and sources <= said != set() and not others)


def greeted(folder: Path) -> Claim:
    """The second session's prompt has what the first one taught, as data, and the greeting follows from it."""
    with limpet.connect(folder / "state.db") as lp:
        talk = lp.sessions.load_session(relief.SECOND)
        said = list(talk.messages) if talk else []
    prompt = str(said[0].content) if said else ""
    words = str(said[-1].content) if said else ""
    told = prompt.startswith(script.SYSTEM) and "honey" in prompt and len(said) == 3
    held = told and "Jonas" in words and "honey" in words
    text = "the new session was told in its system prompt, and the relief is greeted with his tea"
    return Claim("greeted", text if held else "nobody knows him", held)
