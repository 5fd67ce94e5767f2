"""The archive: full-text search over everything a user ever said or was told, compacted or not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, cast

import msgspec

from holdfast import errors, limits
from holdfast.engine import requests, surroundings
from holdfast.engine.archive_tool import ArchiveTool
from holdfast.engine.engine import Engine
from holdfast.engine.indexing import IndexTask
from holdfast.engine.requests import When
from holdfast.engine.states import facts
from holdfast.memory.archive import forgetting, passages, searching
from holdfast.memory.archive.index import Index
from holdfast.memory.archive.terms import asked
from holdfast.memory.archive.text import text_of
from holdfast.memory.shelf import Shelf
from holdfast.values.event import MessageAdded
from holdfast.values.frozen import checked_text
from holdfast.values.memory import Found, Hit, Said, Who
from holdfast.values.message import ROLES, checked_id
from holdfast.values.session import SessionStatus

if TYPE_CHECKING:
    from holdfast.engine.recalling import Recall

_MORE: Final = 5
"""Messages that are looked at beyond those asked for: the words' nearness decides between them."""

_WIDE: Final = 50
"""Messages that words find for a search by meaning: so many of each way of searching are put in one order."""

Place = Hit | tuple[str, str]
"""A message: a hit, or the ids of its session and of itself."""


class Archive:
    """Finds what was said, for one tenant. Every search is one user's."""

    def __init__(
        self,
        engine: Engine,
        tenant: str,
        shelf: Callable[[], Shelf],
        settle: Callable[[], None] = lambda: None,
        meaning: Callable[[], Recall | None] = lambda: None,
    ) -> None:
        self._engine = engine
        self._tenant = tenant
        self._shelf = shelf
        self._settle = settle
        self._meaning = meaning
        self._task: IndexTask | None = None

    def search(
        self,
        query: str,
        *,
        user_id: str | None,
        k: int = 10,
        role: str | Sequence[str] | None = None,
        since: When | None = None,
        until: When | None = None,
        session_id: str | None = None,
        fresh: bool = True,
    ) -> Found:
        """Return up to k messages of a user that fit a query, the best first.

        `user_id` None: of sessions that have no user. `since` and `until` are inclusive, and compare with the
        messages' own times. `fresh` takes what is new in the log into the archive first, up to a bound;
        `.behind` of the answer is how many events it had still to go. With an embedder, what means much the same
        is found too, and of what was said about one thing the latest stands first. Raises InvalidRequest.
        """
        self._engine.check()
        words = _checked_query(query)
        recall = self._meaning()
        sought = searching.Sought(
            terms=asked(words),
            k=_checked_k(k) + (_MORE if recall is None else _WIDE),
            roles=_checked_roles(role),
            session_id=None if session_id is None else checked_id("a session's id", session_id),
            since_us=requests.microseconds(since),
            until_us=requests.microseconds(until),
        )
        who = self._who(user_id)
        if fresh:
            self._settle()
        behind = 0 if fresh and self.catch_up() else self.behind()
        hits = self._found(who, sought, words)
        if recall is not None:
            hits = self._by_meaning(recall, who, sought, query=words, hits=hits, k=k)
        if behind:
            hits = [hit for hit in hits if not self._is_deleted(hit.session_id)]
        found = Found(hits[:k])
        found.behind = behind
        return found

    def _found(self, who: Who, sought: searching.Sought, query: str) -> list[Hit]:
        try:
            rows = Index(self._shelf())
            owner = rows.owner(who)
            found = (
                searching.Matches((), {})
                if owner is None
                else searching.search(rows, owner, sought)
            )
        except errors.Corrupt as error:
            self.task.begin_anew(error)
            self.catch_up()
            return self._found(who, sought, query)
        return sorted(self._hits(found, query), key=lambda hit: (-hit.score, -hit.position))

    def _hits(self, found: searching.Matches, query: str) -> Iterator[Hit]:
        several = len(found.weights) > 1
        for match in found.matches:
            stored = self._engine.store.feed(self._tenant, after=match.position - 1, limit=1)
            if not stored or stored[0].payload is None:
                continue
            event = facts(self._engine.store, self._tenant, stored)[0].event
            if not isinstance(event, MessageAdded):
                continue
            text = text_of(event.message)
            passage = passages.best(text, found.weights)
            near = 1 + passage.share / 2 + (several and passages.says(text, query)) / 2
            yield Hit(
                session_id=match.place.session_id,
                generation=match.place.generation,
                number=stored[0].ordinal - match.place.began,
                message_id=event.message.id,
                position=match.position,
                role=match.role,
                time_us=match.time_us,
                excerpt=passage.excerpt,
                score=round(match.score * near, 6),
                marks=passage.marks,
            )

    def _by_meaning(
        self,
        recall: Recall,
        who: Who,
        sought: searching.Sought,
        *,
        query: str,
        hits: list[Hit],
        k: int,
    ) -> list[Hit]:
        """Return what words have found and what lies near in meaning, in one order; the words alone if that can't be had."""
        from holdfast.memory.meaning.gallery import Wanted  # noqa: PLC0415 - only whoever has numpy

        rows = Index(self._shelf())
        owner = rows.owner(who)
        if owner is None:
            return hits
        found = {hit.position: hit for hit in hits}

        def texts(positions: Sequence[int]) -> dict[int, str]:
            known = searching.located(rows, owner, set(positions) - found.keys())
            said = searching.Matches(list(known.values()), {})
            found.update((hit.position, hit) for hit in self._hits(said, query))
            return {at: self._said(at) for at in positions if at in found}

        wanted = Wanted(
            roles=sought.roles, session_id=sought.session_id,
            since_us=sought.since_us, until_us=sought.until_us,
        )  # fmt: skip
        by_words = [hit.position for hit in hits]
        try:
            order = recall.search(who, query, k, by_words=by_words, texts=texts, wanted=wanted)
        except errors.Unavailable:
            return hits
        # Scores of words and of meanings do not compare; the place does.
        return [
            msgspec.structs.replace(found[position], score=round(1 / place, 6))
            for place, position in enumerate(order, 1)
        ]

    def _said(self, position: int) -> str:
        stored = self._engine.store.feed(self._tenant, after=position - 1, limit=1)
        event = facts(self._engine.store, self._tenant, stored)[0].event
        return text_of(event.message) if isinstance(event, MessageAdded) else ""

    def _is_deleted(self, session_id: str) -> bool:
        """Whether a session was deleted since the archive has last looked at the log."""
        state = self._engine.states.current(self._tenant, session_id)
        return state is None or state.status is SessionStatus.DELETED

    def open(self, place: Place, around: int = 5, *, user_id: str | None = None) -> list[Said]:
        """Return a message with up to `around` before and after it, in order, as its session was then.

        `place` is a hit, or the ids of a session and of a message of it. With `user_id` only that user's
        sessions are there. Raises UnknownSession if it was deleted, UnknownMessage, InvalidRequest.
        """
        self._engine.check()
        self._settle()
        session_id, message_id = _checked_place(place)
        if type(cast("object", around)) is not int or not 0 <= around <= limits.ARCHIVE_AROUND_MAX:
            raise errors.InvalidRequest(
                f"around is a number from 0 to {limits.ARCHIVE_AROUND_MAX:,}."
            )
        if user_id is not None:
            checked_id("a user's id", user_id)
        find = surroundings.Surroundings(self._engine, self._tenant)
        return find.around(session_id, message_id, around, user_id)

    def tool(self, user_id: str) -> ArchiveTool:
        """Return a tool that lets a model search what this user said or was told, and nobody else."""
        return ArchiveTool(self, checked_id("a user's id", user_id))

    def forget(
        self, user_id: str | None, session_id: str | None = None, position: int | None = None
    ) -> int:
        """Drop everything of a user from the archive, or one session, or one message; return how many messages.

        The log is not touched: what is not erased there comes back when the archive is made anew.
        """
        self._engine.check()
        who = self._who(user_id)
        try:
            return forgetting.forget(Index(self._shelf()), who, session_id, position)
        except errors.Corrupt as error:
            self.task.begin_anew(error)
            return 0

    @property
    def task(self) -> IndexTask:
        """The work of taking the log in, for a worker."""
        if self._task is None:
            self._task = IndexTask(self._engine, self._shelf())
        return self._task

    def catch_up(self, events: int = limits.ARCHIVE_CATCH_UP) -> bool:
        """Take what is new in the log into the archive, about that many events at most; return whether that was all."""
        for _ in range(max(1, events // limits.ARCHIVE_BATCH)):
            if not self.task.step(self._tenant):
                return True
        return False

    def behind(self) -> int:
        """Return how many events of the log are not in the archive yet."""
        at = Index(self._shelf()).cursor(self._tenant)[0].position
        return _end(self._is_there, at) - at

    def _is_there(self, position: int) -> bool:
        return bool(self._engine.store.feed(self._tenant, after=position - 1, limit=1))

    def _who(self, user_id: str | None) -> Who:
        return Who(self._tenant, "" if user_id is None else checked_id("a user's id", user_id))


def _end(is_there: Callable[[int], bool], position: int) -> int:
    """Return the last position that is there; the given one is, or is 0."""
    step = 1
    while is_there(position + step):
        position, step = position + step, step * 2
    while step > 1:
        step //= 2
        if is_there(position + step):
            position += step
    return position


def _checked_query(query: str) -> str:
    if not isinstance(cast("object", query), str):
        raise errors.InvalidRequest(f"a query is text, not {type(query).__name__}.")
    words = checked_text(query)
    if not words.strip() or "\0" in words:
        raise errors.InvalidRequest("a query needs a word.", hint='For example "which seat".')
    if len(words) > limits.ARCHIVE_QUERY_CHARS_MAX:
        raise errors.InvalidRequest(
            f"a query has at most {limits.ARCHIVE_QUERY_CHARS_MAX:,} characters, not {len(words):,}.",
            hint="Ask for the words that matter.",
            facts={"chars": len(words), "chars_max": limits.ARCHIVE_QUERY_CHARS_MAX},
        )
    return words


def _checked_k(k: int) -> int:
    if type(cast("object", k)) is not int or not 1 <= k <= limits.ARCHIVE_HITS_MAX:
        raise errors.InvalidRequest(f"k is a number from 1 to {limits.ARCHIVE_HITS_MAX:,}.")
    return k


def _checked_roles(role: str | Sequence[str] | None) -> frozenset[str]:
    if role is None:
        return frozenset()
    roles = (role,) if isinstance(role, str) else role
    try:
        chosen = frozenset(roles)
    except TypeError:
        chosen = frozenset(("",))
    if not chosen or not chosen <= frozenset(ROLES):
        raise errors.InvalidRequest(
            "role is one of system, user, assistant and tool, or a list of some."
        )
    return chosen


def _checked_place(place: Place) -> tuple[str, str]:
    if isinstance(place, Hit):
        return place.session_id, place.message_id
    if not isinstance(cast("object", place), tuple) or len(place) != 2:
        raise errors.InvalidRequest("open a hit, or (session_id, message_id).")
    return checked_id("a session's id", place[0]), checked_id("a message's id", place[1])
