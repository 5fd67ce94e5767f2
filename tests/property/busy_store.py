"""A store that much has happened in, by chance: what an export has to carry over whole."""

from __future__ import annotations

import contextlib
import random
from typing import Any

from limpet import Message, Session, WindowPolicy, errors
from limpet.admin.export import begin_version
from limpet.core.formats import intake
from limpet.runtime.engine import Engine
from limpet.sessions.windows import RecordedWindow
from tests.property import random_messages

USERS = ("ada", "bo", None)
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "iVBORw0KGgo" * 4000}}


class Walk:
    """Does one thing after another to the sessions of a store."""

    def __init__(self, lp: Any, seed: int) -> None:
        self.lp = lp
        self.dice = random.Random(seed)
        self.made = 0

    def ids(self) -> list[str]:
        return [row["id"] for row in self.lp.sessions.list_sessions(limit=1000)]

    def new(self) -> str:
        self.made += 1
        return f"s{self.made}-é"

    def step(self) -> None:
        known = self.ids()
        if not known or self.dice.random() < 0.07:
            self.create(self.new())
            return
        name = self.dice.choice(known)
        verbs = [self.say] * 12 + [
            self.fork, self.rewind, self.rewind, self.reset, self.end, self.update, self.update,
            self.continue_, self.trim, self.summarize, self.recreate, self.large, self.fork_past,
        ]  # fmt: skip
        with contextlib.suppress(errors.Refused, errors.NotFound, errors.Conflict):
            self.dice.choice(verbs)(name)

    def create(self, name: str) -> None:
        policy = WindowPolicy(budget=400, summary="en") if self.dice.random() < 0.4 else None
        self.lp.sessions.create_session(
            name,
            user_id=self.dice.choice(USERS),
            title=self.dice.choice([None, "a title", "旅\u200d"]),
            metadata={"team": "north", "n": [1, 2.5, None]} if self.dice.random() < 0.5 else None,
            system="You plan trips." if self.dice.random() < 0.5 else None,
            policy=policy,
        )

    def say(self, name: str) -> None:
        session = self.lp.sessions.get_session(name)
        session = self.lp.sessions._service.conversation_end(session.state).id
        session = self.lp.sessions.get_session(session)
        made: list[Message] = []
        waiting = [call.call_id for call in session.state.open_calls]
        for _ in range(self.dice.randint(1, 4)):
            if waiting:
                message = random_messages.giving(self.dice, waiting)
                done = {result.tool_call_id for result in message.tool_results}
                waiting = [one for one in waiting if one not in done]
            elif self.dice.random() < 0.3:
                message = random_messages.asking(self.dice)
                waiting = [call.id for call in message.tool_calls]
            else:
                message = random_messages.spoken(self.dice)
            made.append(message)
        window = session.window(600) if self.dice.random() < 0.4 else None
        usage = window.tokens + 7 if window is not None and self.dice.random() < 0.5 else None
        session.add_messages(made, window=window, usage=usage)

    def large(self, name: str) -> None:
        text = self.dice.choice(["long 🛳 " * 8000, "\0" * 40_000])
        parts = [PICTURE, {"type": "text", "text": text}]
        self.lp.sessions.add_messages(name, [intake.accept({"role": "user", "content": parts})])

    def _number(self, name: str) -> int:
        return self.dice.randint(1, max(1, len(self.lp.sessions.get_session(name).messages)))

    def fork(self, name: str) -> None:
        title = self.dice.choice([None, "a fork"])
        self.lp.sessions.fork_session(name, self._number(name), new_id=self.new(), title=title)

    def fork_past(self, name: str) -> None:
        session = self.lp.sessions.get_session(name)
        session.at(self.dice.randint(1, session.version)).fork(new_id=self.new())

    def rewind(self, name: str) -> None:
        self.lp.sessions.rewind_session(name, self._number(name))

    def reset(self, name: str) -> None:
        self.lp.sessions.reset_session(name, system=self.dice.choice([None, "Again."]))

    def end(self, name: str) -> None:
        if self.dice.random() < 0.3:
            self.lp.sessions.end_session(name)

    def update(self, name: str) -> None:
        number = self.dice.randrange(9)
        self.lp.sessions.update_session(name, title=f"title {number}", metadata={"k": number}, drop_metadata=["team"])

    def continue_(self, name: str) -> None:
        self.lp.sessions.create_continuation_session(self.lp.sessions.get_session(name))

    def trim(self, name: str) -> None:
        self.lp.sessions.get_session(name).trimmed(200, summary="en")

    def summarize(self, name: str) -> None:
        self.lp.sessions.get_session(name).summarize(lambda _, before: f"{before or ''} all said")

    def recreate(self, name: str) -> None:
        if self.dice.random() < 0.5:
            self.lp.sessions.delete_session(name)
            self.create(name)
            self.say(name)


def of_the_deleted(recorded: RecordedWindow, session: Session, engine: Engine) -> bool:
    """Whether a window shows a session before this one in the chain that was deleted since."""
    if recorded.session_id == session.id:
        return False
    state = engine.states.current("default", recorded.session_id)
    return state is None or state.hidden or recorded.seen <= begin_version(engine, "default", state)


def picture(session: Session, engine: Engine) -> dict[str, Any]:
    """All that can be read of a session, but for the numbers of its events."""
    windows: list[Any] = []
    for recorded in session.recorded_windows(limit=100):
        told: Any = None
        if not of_the_deleted(recorded, session, engine):
            with contextlib.suppress(errors.Corrupt):
                window = session.window_of(recorded.message_id)
                told = [message.to_dict() for message in window.messages]
        windows.append((recorded.digest, recorded.recorded_at, told))
    try:
        window = [message.to_dict() for message in session.window(700).messages]
    except errors.ContextOverflow:
        window = None
    state = session.state
    return {
        "messages": [message.to_dict() for message in session.messages],
        "raw": [message.raw() for message in session.messages],
        "title": state.title,
        "preview": state.preview,
        "metadata": state.full_metadata(),
        "status": (state.status, state.end_reason),
        "times": (state.created_us, state.active_us),
        "user": state.user_id,
        "tokens": (state.tokens, state.live, state.carried, state.carried_tokens),
        "calls": state.open_calls,
        "links": (state.continued_from, state.continuations, state.continuation_index, state.root_id),
        "policy": (state.policy, state.cut, state.summary, state.written, state.corrections),
        "window": window,
        "windows": [window[:2] for window in windows],
        "shown": [window[2] for window in windows],
    }  # fmt: skip
