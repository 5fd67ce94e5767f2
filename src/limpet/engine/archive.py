"""The archive: full-text search over everything a user ever said or was told, compacted or not."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, cast

import msgspec

from limpet import errors, limits
from limpet.core.values.events import MessageAddedEvent
from limpet.core.values.json_values import checked_text
from limpet.core.values.memory_records import Found, Hit, Said, Who
from limpet.core.values.messages import ROLES, checked_id
from limpet.core.values.session_state import SessionStatus
from limpet.engine import cursors, surroundings
from limpet.engine.archive_tool import ArchiveTool
from limpet.engine.indexing import IndexTask
from limpet.memory.archive import forgetting, passages, searching
from limpet.memory.archive.held import Kept
from limpet.memory.archive.index import Index
from limpet.memory.archive.terms import asked
from limpet.memory.archive.text import text_of
from limpet.memory.meaning import fusion
from limpet.memory.meaning.fusion import Ranking
from limpet.memory.shelf import Shelf
from limpet.runtime.engine import Engine
from limpet.runtime.state_cache import decode_session_events
from limpet.sessions import requests
from limpet.sessions.requests import When

if TYPE_CHECKING:
    from limpet.engine.recalling import Recall

_MORE: Final = 5
"""Messages that are looked at beyond those asked for: the words' nearness decides between them."""

_WIDE: Final = 50
"""Messages that words find for a search by meaning: so many of each way of searching are put in one order."""

Place = Hit | tuple[str, str]
"""A message: a hit, or the ids of its session and of itself."""

Texts = Callable[[Sequence[int]], Mapping[int, str]]
"""From positions of messages to what they say; those that are erased or gone are left out."""

_NONE: Final = Ranking(())


class _Begun(msgspec.Struct, frozen=True):
    """A search that has looked for the words: how many are asked for, what was found and says, and what is known beside."""

    query: str
    k: int
    hits: list[Hit]
    texts: dict[int, str]
    known: Ranking


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
        self._kept = Kept()

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
        sought = searching.Sought(
            terms=asked(words),
            k=_checked_k(k),
            roles=_checked_roles(role),
            session_id=None if session_id is None else checked_id("a session's id", session_id),
            since_us=requests.moment_us(since),
            until_us=requests.moment_us(until),
        )
        found = self._ordered(self._who(user_id), sought, words, fresh=fresh)
        del found[k:]
        return found

    def beside(self, who: Who, query: str, k: int, known: Ranking) -> Found:
        """Return messages that fit a query in one order with those that are known to: the sources of facts.

        The first k are the answer; those behind them tell which of the known ones are in the archive at all.
        """
        self._engine.check()
        words = _checked_query(query)
        sought = searching.Sought(terms=asked(words), k=_checked_k(k))
        return self._ordered(who, sought, words, known=known)

    def _ordered(
        self,
        who: Who,
        sought: searching.Sought,
        query: str,
        *,
        known: Ranking = _NONE,
        fresh: bool = True,
    ) -> Found:
        """Return at least k messages, the best first, if there are as many."""
        if fresh:
            self._settle()
        behind = 0 if fresh and self.catch_up() else self.behind()
        recall, k = self._meaning(), sought.k
        more = _MORE if recall is None else _WIDE
        sought = msgspec.structs.replace(sought, k=k + more)
        texts: dict[int, str] = {}
        hits = self._found(who, sought, query, texts)
        if recall is not None or known.positions:
            hits = self._fused(recall, who, sought, _Begun(query, k, hits, texts, known))
        if behind:
            hits = [hit for hit in hits if not self._is_deleted(hit.session_id)]
        found = Found(hits)
        found.behind = behind
        return found

    def _found(
        self, who: Who, sought: searching.Sought, query: str, texts: dict[int, str]
    ) -> list[Hit]:
        try:
            rows = Index(self._shelf())
            owner = rows.owner(who)
            found = (
                searching.Matches((), {})
                if owner is None
                else searching.search(rows, owner, sought, self._kept)
            )
        except errors.Corrupt as error:
            self.task.begin_anew(error)
            self.catch_up()
            return self._found(who, sought, query, texts)
        hits = self._hits(found, query, texts)
        return sorted(hits, key=lambda hit: (-hit.score, -hit.position))

    def _hits(self, found: searching.Matches, query: str, texts: dict[int, str]) -> Iterator[Hit]:
        """Yield what was found, as it is shown, and note what each says."""
        several = len(found.weights) > 1
        for match in found.matches:
            stored = self._engine.store.feed(self._tenant, after=match.position - 1, limit=1)
            if not stored or stored[0].payload is None:
                continue
            event = decode_session_events(self._engine.store, self._tenant, stored)[0].event
            if not isinstance(event, MessageAddedEvent):
                continue
            texts[match.position] = text = text_of(event.message)
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

    def _fused(
        self, recall: Recall | None, who: Who, sought: searching.Sought, begun: _Begun
    ) -> list[Hit]:
        """Return what words have found, what is known and what lies near in meaning, in one order.

        Without the meanings if they can't be had.
        """
        rows = Index(self._shelf())
        owner = rows.owner(who)
        if owner is None:
            return begun.hits
        found = {hit.position: hit for hit in begun.hits}

        def texts(positions: Sequence[int]) -> dict[int, str]:
            missing = set(positions) - found.keys()
            if missing:
                known = searching.located(rows, owner, missing, self._kept)
                said = searching.Matches(list(known.values()), {})
                hits = self._hits(said, begun.query, begun.texts)
                found.update((hit.position, hit) for hit in hits)
            return {at: begun.texts[at] for at in positions if at in found}

        order = _by_meaning(recall, who, sought, begun, texts)
        # Scores of words and of meanings do not compare; the place does.
        return [
            msgspec.structs.replace(found[position], score=round(1 / place, 6))
            for place, position in enumerate(order, 1)
        ]

    def _is_deleted(self, session_id: str) -> bool:
        """Whether a session was deleted since the archive has last looked at the log."""
        state = self._engine.states.current(self._tenant, session_id)
        return state is None or state.status is SessionStatus.DELETED

    def open(self, place: Place, around: int = 5, *, user_id: str | None = None) -> list[Said]:
        """Return a message with up to `around` before and after it, in order, as its session was then.

        `place` is a hit, or the ids of a session and of a message of it. With `user_id` only that user's
        sessions are there. Raises SessionNotFound if it was deleted, MessageNotFound, InvalidRequest.
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
        return cursors.lag(self._engine.store, self._tenant, at)

    def size(self) -> int:
        """Return how many bytes archive and memory take beside the store; 0: nobody has begun one. Makes none."""
        return self._shelf().size()

    def _who(self, user_id: str | None) -> Who:
        return Who(self._tenant, "" if user_id is None else checked_id("a user's id", user_id))


def _by_meaning(
    recall: Recall | None, who: Who, sought: searching.Sought, begun: _Begun, texts: Texts
) -> list[int]:
    """Return the positions of messages in one order; by words and what is known if meanings can't be had."""
    words = [hit.position for hit in begun.hits]
    if recall is not None:
        from limpet.memory.meaning.gallery import Wanted  # noqa: PLC0415 - only whoever has numpy

        wanted = Wanted(
            roles=sought.roles, session_id=sought.session_id,
            since_us=sought.since_us, until_us=sought.until_us,
        )  # fmt: skip
        with contextlib.suppress(errors.Unavailable):
            return recall.search(
                who, begun.query, begun.k, by_words=words, texts=texts, wanted=wanted,
                others=[begun.known],
            )  # fmt: skip
    said = texts([*words, *begun.known.positions])
    return [at for at in fusion.fused([Ranking(words), begun.known]) if at in said]


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
