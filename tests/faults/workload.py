"""Authors: callers who do random but valid things to sessions, and note what they know.

Sessions of an author's own see every verb: single messages, batches, parallel tool calls answered
one by one, metadata, continuation, end, reset, delete. Shared sessions get whole turns from several
authors at once. Some of what they say is large enough to be a blob, and some of that the same for all.
Everything is drawn from a seed, ids included.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import limpet
from limpet import Message, ToolCallRequest, ToolCallResult
from tests.faults import journal
from tests.faults.journal import Sink, Step

SHARED = "shared-"
LARGE_BYTES = 120
"""Texts above it are blobs in these programmes, so that there are many in little room."""

CHORUS = "haul away, " * 30
"""A large text that all authors say again and again."""

WORDS = ("tide", "kelp", "anchor", "harbour", "ебб", "潮", "swell", "\x00", "🪢", "lee shore")


def shared_ids(count: int) -> list[str]:
    """The ids of the sessions that every author may write to."""
    return [f"{SHARED}{number}" for number in range(count)]


@dataclass(slots=True)
class _Desk:
    """What an author remembers of one of its sessions."""

    id: str
    open_calls: list[str] = field(default_factory=list)
    number: int = 0
    ended: bool = False


class Author:
    """One caller. Not for use by several threads; several authors may share an engine."""

    def __init__(
        self,
        engine: limpet.Limpet,
        sink: Sink,
        *,
        name: str,
        seed: int,
        shared: Sequence[str] = (),
        early_ack: bool = False,
    ) -> None:
        self._sessions = engine.sessions
        self._sink = sink
        self._name = name
        self._rng = random.Random(f"{name}/{seed}")
        self._shared = list(shared)
        self._early_ack = early_ack
        self._desks: list[_Desk] = []
        self._made = 0

    def adopt(self, session_id: str) -> None:
        """Go on with a session that an author before this one has left, as it is now."""
        state = self._sessions.get_session(session_id).state
        self._desks.append(
            _Desk(
                session_id,
                [call.call_id for call in state.open_calls],
                int(state.metadata.get("number", 0)),
                state.status != "active",
            )
        )

    @property
    def sessions(self) -> list[str]:
        """Its own sessions that are still there."""
        return [desk.id for desk in self._desks]

    def work(self, steps: int) -> None:
        """Take so many steps."""
        for _ in range(steps):
            self.step()

    def step(self) -> None:
        """Do one thing and note it."""
        if self._shared and self._rng.random() < 0.25:
            self._add_to(self._rng.choice(self._shared), self._turn())
        elif len(self._desks) < 2 or self._rng.random() < 0.03:
            self._create()
        else:
            self._act(self._rng.choice(self._desks))

    def _act(self, desk: _Desk) -> None:
        if desk.ended:
            self._rng.choice((self._reset, self._delete))(desk)
        elif desk.open_calls:
            (self._answer if self._rng.random() < 0.95 else self._continue)(desk)
        else:
            self._rng.choices(_ACTIONS, _WEIGHTS)[0](self, desk)

    def _note(
        self, session: str, verb: str, act: Callable[[], object], messages: Sequence[Message] = (), number: int = 0
    ) -> None:
        said = tuple(journal.said(message) for message in messages)
        step = Step(self._fresh("step"), self._name, session, verb, said, number)
        self._sink.note(journal.submitted(step))
        if self._early_ack and verb != "continue":
            self._sink.note(journal.acknowledged(step))
        target = act()
        opened = target.id if verb == "continue" and isinstance(target, limpet.Session) else ""
        self._sink.note(journal.acknowledged(step, opened))

    def _create(self) -> None:
        session = self._fresh("session")
        self._note(
            session,
            "create",
            lambda: self._sessions.create_session(
                session_id=session, user_id=self._name, system=f"You are {self._text(20)}"
            ),
        )
        self._desks.append(_Desk(session))

    def _add_to(self, session: str, messages: Sequence[Message]) -> None:
        handle = self._sessions.get_session(session)
        act = (
            (lambda: handle.add_message(messages[0])) if len(messages) == 1 else (lambda: handle.add_messages(messages))
        )
        self._note(session, "add", act, messages)

    def _say(self, desk: _Desk) -> None:
        self._add_to(desk.id, [self._user()])

    def _batch(self, desk: _Desk) -> None:
        self._add_to(desk.id, self._turn())

    def _call(self, desk: _Desk) -> None:
        call = self._calling(self._rng.randint(1, 3))
        self._add_to(desk.id, [call])
        desk.open_calls = [request.id for request in call.tool_calls]

    def _answer(self, desk: _Desk) -> None:
        count = self._rng.choice((1, len(desk.open_calls)))
        self._rng.shuffle(desk.open_calls)
        answered = desk.open_calls[:count]
        self._add_to(desk.id, [self._tool(answered)])
        desk.open_calls = desk.open_calls[count:]

    def _update(self, desk: _Desk) -> None:
        desk.number += 1
        number = desk.number
        self._note(
            desk.id,
            "update",
            lambda: self._sessions.update_session(desk.id, title=f"number {number}", metadata={"number": number}),
            number=number,
        )

    def _end(self, desk: _Desk) -> None:
        self._note(desk.id, "end", lambda: self._sessions.end_session(desk.id))
        desk.ended = True

    def _reset(self, desk: _Desk) -> None:
        self._note(desk.id, "reset", lambda: self._sessions.reset_session(desk.id))
        desk.ended = False

    def _delete(self, desk: _Desk) -> None:
        self._note(desk.id, "delete", lambda: self._sessions.delete_session(desk.id))
        self._desks.remove(desk)

    def _continue(self, desk: _Desk) -> None:
        handle = self._sessions.get_session(desk.id)

        def act() -> limpet.Session:
            opened = self._sessions.create_continuation_session(handle)
            desk.id = opened.id
            return opened

        self._note(desk.id, "continue", act, number=desk.number)

    def _user(self) -> Message:
        return Message(
            role="user", content=self._words(), id=self._fresh("message"),
            metadata={"mood": self._text(5)},
        )  # fmt: skip

    def _assistant(self) -> Message:
        return Message(role="assistant", content=self._words(), id=self._fresh("message"))

    def _calling(self, count: int) -> Message:
        calls = [
            ToolCallRequest(id=self._fresh("call"), name="sound", args={"depth": self._text(10)}) for _ in range(count)
        ]
        return Message(role="assistant", id=self._fresh("message"), tool_calls=calls)

    def _tool(self, calls: Sequence[str]) -> Message:
        results = [ToolCallResult(tool_call_id=call, result={"fathoms": 7}) for call in calls]
        return Message(role="tool", id=self._fresh("message"), tool_results=results)

    def _turn(self) -> list[Message]:
        """Messages that are complete in themselves."""
        call = self._calling(self._rng.randint(1, 2))
        tool = self._tool([request.id for request in call.tool_calls])
        whole = [self._user(), call, tool, self._assistant()]
        return self._rng.choice((whole[:1], whole[3:], whole))

    def _words(self) -> str:
        return CHORUS if self._rng.random() < 0.1 else self._text(self._size())

    def _size(self) -> int:
        return self._rng.choices((30, 300, 3000), (80, 18, 2))[0]

    def _text(self, size: int) -> str:
        return " ".join(self._rng.choices(WORDS, k=max(1, self._rng.randint(1, size) // 6)))

    def _fresh(self, kind: str) -> str:
        self._made += 1
        return f"{kind}-{self._name}-{self._made}"


_ACTIONS: Sequence[Callable[[Author, _Desk], None]] = (
    Author._say, Author._batch, Author._call, Author._update,
    Author._end, Author._reset, Author._continue,
)  # fmt: skip
_WEIGHTS = (30, 20, 30, 10, 2, 3, 5)
