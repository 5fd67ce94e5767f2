"""Sessions beside a simple model of them: every verb is done to both, and both must agree.

The model knows conversations, not sessions: one conversation is what was said from a root on, through
however many sessions it went. It knows nothing of versions, streams, snapshots or caches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from limpet import Message, Session, errors
from limpet.core.values.events import MessageAddedEvent
from limpet.stores import port
from tests.faults import provider_pairing
from tests.property.store_homes import Home


@dataclass
class Talk:
    """A conversation as the model knows it."""

    root: str
    user_id: str | None
    parts: int = 1
    said: list[Message] = field(default_factory=list[Message])
    title: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    ended: bool = False
    generation: int = 0

    def open_calls(self) -> list[str]:
        return provider_pairing.waiting(self.said)

    def verdict(self, messages: Sequence[Message]) -> type[errors.Error] | None:
        """What the rules say to messages that are new."""
        if self.ended:
            return errors.SessionEnded
        return errors.Refused if provider_pairing.faults([*self.said, *messages]) else None


class World:
    """A home, the model of what should be in it, and the verbs that act on both."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.talks: dict[str, Talk] = {}
        self.log: list[str] = []
        self.keyed: list[tuple[str, str, list[Message]]] = []
        self._made = self._fed = self._crashes = 0
        self._seen: list[str] = []

    def new_id(self, prefix: str) -> str:
        self._made += 1
        return f"{prefix}{self._made}"

    def create(self, *, system: str | None, user_id: str | None) -> Talk:
        talk = Talk(self.new_id("talk-"), user_id)
        session = self.home.sessions.create_session(talk.root, user_id=user_id, system=system)
        self._note(talk, list(session.messages))
        self.talks[talk.root] = talk
        return talk

    def create_twice(self, talk: Talk) -> None:
        refused(errors.DuplicateSession, lambda: self.home.sessions.create_session(talk.root))

    def _note(self, talk: Talk, messages: Sequence[Message]) -> None:
        talk.said += messages
        self.log += [message.id for message in messages]

    def add(self, talk: Talk, messages: list[Message], *, via: int = 0, key: str | None = None) -> None:
        """Add messages through the root's id, a stale handle of the root, or the newest part's id."""
        verdict = talk.verdict(messages)
        if verdict is not None:
            refused(verdict, lambda: self._add(talk, messages, via, key))
            return
        session = self._add(talk, messages, via, key)
        self._note(talk, messages)
        talk.parts = max(talk.parts, session.state.continuation_index + 1)
        if key is not None:
            self.keyed.append((key, talk.root, messages))

    def repeat(self, talk: Talk, at: int, count: int) -> None:
        """Add again what is there already: it must make no difference."""
        if known := self._known(talk):
            at %= len(known)
            self._add(talk, known[at : at + count], 0, None)

    def repeat_partly(self, talk: Talk, message: Message) -> None:
        """Add something new together with something known: neither is taken."""
        if known := self._known(talk):
            refused(errors.Error, lambda: self._add(talk, [known[-1], message], 0, None))

    def _known(self, talk: Talk) -> list[Message]:
        """A message is known again in the session that is named and in the last two of its chain."""
        chain = self.home.sessions.session_chain(talk.root)
        near = {part.id: part for part in (chain[0], *chain[-2:])}.values()
        return [m for part in near for m in part.messages if m.origin is None]

    def _add(self, talk: Talk, messages: list[Message], via: int, key: str | None) -> Session:
        sessions = self.home.sessions
        if via == 0:
            return sessions.add_messages(talk.root, messages, key=key)
        if via == 1:
            return sessions.get_session(talk.root).add_messages(messages, key=key)
        tail = sessions.session_chain(talk.root)[-1]
        return sessions.add_messages(tail.id, messages, key=key)

    def add_stale(self, talk: Talk, message: Message) -> None:
        """Name a version that has passed."""
        version = self.home.sessions.get_session(talk.root).version
        refused(
            errors.StaleVersion,
            lambda: self.home.sessions.add_messages(talk.root, [message], expected_version=version - 1),
        )

    def repeat_key(self, at: int) -> None:
        """Say again, with its key, something said at any time before."""
        if self.keyed:
            key, root, messages = self.keyed[at % len(self.keyed)]
            self.home.sessions.add_messages(root, messages, key=key)

    def reuse_key(self, at: int, message: Message) -> None:
        if self.keyed:
            key, root, _ = self.keyed[at % len(self.keyed)]
            refused(errors.KeyReused, lambda: self.home.sessions.add_messages(root, [message], key=key))

    def update(self, talk: Talk, title: str | None, metadata: dict[str, Any], drop: list[str]) -> None:
        if talk.parts > 1:
            return
        self.home.sessions.update_session(talk.root, title=title, metadata=metadata, drop_metadata=drop)
        talk.title = title
        merged = {**talk.metadata, **metadata}
        talk.metadata = {key: value for key, value in merged.items() if key not in drop}

    def go_on(self, talk: Talk) -> None:
        """Continue the newest part in a new session."""
        tail = self.home.sessions.session_chain(talk.root)[-1]
        if talk.ended:
            refused(errors.SessionEnded, lambda: self.home.sessions.create_continuation_session(tail))
            return
        self.home.sessions.create_continuation_session(tail)
        talk.parts += 1

    def close_calls(self, talk: Talk) -> None:
        tail = self.home.sessions.session_chain(talk.root)[-1]
        waiting = talk.open_calls()
        assert sorted(call.call_id for call in tail.pending_calls()) == sorted(waiting)
        if talk.ended:
            return
        tail.close_pending_calls()
        if waiting:
            self._note(talk, [tail.messages[-1]])
            talk.parts = max(talk.parts, tail.state.continuation_index + 1)
        assert talk.open_calls() == []

    def end(self, talk: Talk) -> None:
        if talk.parts == 1:
            self.home.sessions.end_session(talk.root)
            talk.ended = True

    def reset(self, talk: Talk, *, by_get_or_create: bool) -> None:
        if talk.parts > 1 or (by_get_or_create and not talk.ended):
            return
        if by_get_or_create:
            self.home.sessions.get_or_create_session(talk.root)
        else:
            self.home.sessions.reset_session(talk.root)
        talk.said, talk.ended, talk.generation = [], False, talk.generation + 1

    def delete(self, talk: Talk) -> None:
        for part in reversed(self.home.sessions.session_chain(talk.root)):
            assert self.home.sessions.delete_session(part.id) is True
        assert self.home.sessions.delete_session(talk.root) is False
        assert self.home.sessions.load_session(talk.root) is None
        del self.talks[talk.root]
        self.keyed = [use for use in self.keyed if use[1] != talk.root]

    def expire(self) -> None:
        """End everything. Conversations of several parts are deleted: their model ends here."""
        self.home.sessions.expire(2**61)
        for talk in list(self.talks.values()):
            talk.ended = True
            if talk.parts > 1:
                self.delete(talk)

    def rebuild(self) -> None:
        """Make all that is derived again: it is what it was."""
        before = self._rows()
        made = self.home.admin.rebuild()
        assert self._rows() == before
        assert (made.projections, made.events) == (len(before), self.home.admin.status()["events"])

    def _rows(self) -> list[port.Projection]:
        engine = self.home.sessions._service.engine
        return [
            row
            for kind in ("session", "deleted")
            for row in engine.store.query_projections("default", port.Query(kind=kind, limit=100_000))
        ]

    def reopen(self) -> None:
        self.home.reopen()
        self.check_log()

    def crash(self) -> None:
        self.home.crash()
        self._crashes += 1
        # All of a long log takes its time; what is new is looked at every time.
        self.check_log(whole=self._crashes % 5 == 1)

    def check(self, talk: Talk) -> None:
        """Compare a conversation with its model, and hold it against the invariants."""
        chain = self.home.sessions.session_chain(talk.root)
        assert len(chain) == talk.parts
        said: list[Message] = []
        for index, part in enumerate(chain):
            messages = list(part.messages)
            state = part.state
            assert not (faults := provider_pairing.faults(messages)), faults
            assert len(messages) == part.message_count
            assert state.continuation_index == index
            assert state.tokens == sum(one.fallback_estimate_tokens() for one in messages)
            assert (state.continued_to is None) == (index == len(chain) - 1)
            said += [message for message in messages if message.origin is None]
        assert said == talk.said
        assert len({part.id for part in chain}) == len(chain)
        tail = chain[-1]
        assert [call.call_id for call in tail.state.open_calls] == talk.open_calls()
        assert (tail.status == "ended") == talk.ended
        assert chain[0].generation == talk.generation
        own = sum(message.fallback_estimate_tokens() for message in talk.said)
        assert self.home.sessions.chain_tokens(tail.id) == own
        if talk.parts == 1:
            expected = {**talk.metadata, "message_count": len(talk.said)}
            assert (tail.title, tail.metadata) == (talk.title, expected)

    def check_log(self, *, whole: bool = False) -> None:
        """Compare the log with everything that was ever acknowledged, in order."""
        position = 0 if whole else self._fed
        if whole:
            self._seen = []
        for event in self.home.events.feed(position):
            position += 1
            assert event.position == position
            if isinstance(event.event, MessageAddedEvent) and event.event.message.origin is None:
                self._seen.append(event.event.message.id)
        self._fed = position
        assert self._seen == self.log

    def check_listing(self, limit: int) -> None:
        found: list[str] = []
        cursor: str | None = None
        while True:
            page = self.home.sessions.list_sessions(limit, cursor=cursor)
            found += [row["id"] for row in page]
            cursor = page.next_cursor
            if cursor is None:
                break
        assert len(set(found)) == len(found) == sum(talk.parts for talk in self.talks.values())
        assert set(self.talks) <= set(found)
        for user_id in {talk.user_id for talk in self.talks.values()} - {None}:
            roots = {talk.root for talk in self.talks.values() if talk.user_id == user_id}
            rows = self.home.sessions.list_sessions(1000, user_id=user_id)
            assert roots <= {row["id"] for row in rows}

    def check_all(self) -> None:
        for talk in self.talks.values():
            self.check(talk)
        self.check_log(whole=True)
        self.check_listing(7)
        assert self.home.admin.verify().ok


def refused(expected: type[errors.Error], act: Callable[[], object]) -> None:
    try:
        act()
    except expected:
        return
    raise AssertionError(f"{expected.__name__} was not raised")
