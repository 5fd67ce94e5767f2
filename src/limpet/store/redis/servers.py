"""Which server a command goes to: one, or those of a cluster by the key's slot."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Final, cast

import redis
import redis.crc
from redis.exceptions import AskError, ClusterDownError, MovedError, NoScriptError, TryAgainError

from limpet import errors
from limpet.store.redis import translate
from limpet.store.redis.links import Answer, Call, Link
from limpet.store.redis.place import Place
from limpet.store.redis.scripts import named

PAUSE_S: Final = 0.05
"""Between two looks at whether a server has got ready for something."""

_CLUSTER_WAIT_S: Final = 5.0
"""How long a command looks for the server of a cluster that takes it, while slots or primaries change."""

UNDONE = (MovedError, AskError, TryAgainError, NoScriptError, ClusterDownError)
"""Answers that say that nothing was done, and that it may be done elsewhere, later, or sent whole."""

_CUT_OFF: Final = (redis.ConnectionError, redis.TimeoutError)
"""A server of a cluster that vanishes without a word is not heard of any more: it may not be the primary by now."""

_UNSENT = TryAgainError("TRYAGAIN nothing was sent yet")


class Servers:
    """A server, or a cluster. Commands come with a key each; those for one server go in one round trip."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._lock = threading.Lock()
        self._seed = Link(place)
        self._links: dict[tuple[str, int], Link] = {(place.host, place.port): self._seed}
        self._slots: list[Link] = []

    @property
    def made(self) -> int:
        """How many connections were made so far."""
        with self._lock:
            return sum(link.made for link in self._links.values())

    def script(self, name: str, key: bytes, *words: bytes | str | int) -> Answer:
        """Run one script."""
        return self.run([Call(key, words, named(name))])[0]

    def command(self, key: bytes, *words: bytes | str | int, write: bool = False) -> Answer:
        """Run one command."""
        return self.run([Call(key, words)], write=write)[0]

    def run(self, calls: Sequence[Call], *, write: bool = False) -> list[Answer]:
        """Run calls, each whole by itself, and return their answers in order; raise the first error among them.

        A write that was sent and not answered is never sent again. A read is, once.
        """
        write = write or any(call.script is not None and call.script.writes for call in calls)
        try:
            answers = self._run(calls, write=write)
        except translate.KINDS as error:
            raise translate.of(error, self.place) from error
        for answer in answers:
            if isinstance(answer, Exception):
                raise translate.of(answer, self.place) from answer
        return answers

    def _run(self, calls: Sequence[Call], *, write: bool) -> list[Answer]:
        if not self.place.cluster and not self.place.waitaof:
            answers = self._plainly(calls, write=write)
        else:
            answers = list[Answer](_UNSENT for _ in calls)
        left = [index for index, answer in enumerate(answers) if isinstance(answer, UNDONE)]
        until = time.monotonic() + min(self.place.timeout_s, _CLUSTER_WAIT_S) if left else 0.0
        whole, again = False, not write
        while left and time.monotonic() < until:
            whole = self._learn([answers[index] for index in left], whole=whole)
            for link, indexes in self._parted(calls, answers, left).items():
                chosen = [calls[index] for index in indexes]
                asking = [isinstance(answers[index], AskError) for index in indexes]
                try:
                    found = self._exchange(link, chosen, asking, write=write, whole=whole)
                except _CUT_OFF:
                    self.forget(link)
                    if not again or time.monotonic() >= until:
                        raise
                    again = False
                    continue
                for index, answer in zip(indexes, found, strict=True):
                    answers[index] = answer
            left = [index for index in left if isinstance(answers[index], UNDONE)]
        return answers

    def _plainly(self, calls: Sequence[Call], *, write: bool) -> list[Answer]:
        """Do what nearly always is all there is to do: send to the one server, and hear what it says."""
        commands = [call.command() for call in calls]
        try:
            return self._seed.run(commands)
        except redis.ConnectionError:
            if write:
                raise
            return self._seed.run(commands)

    def _exchange(
        self, link: Link, calls: Sequence[Call], asking: Sequence[bool], *, write: bool, whole: bool
    ) -> list[Answer]:
        commands: list[tuple[bytes | str | int, ...]] = []
        for call, ask in zip(calls, asking, strict=True):
            commands += [(b"ASKING",)] * ask
            commands.append(call.command(whole=whole))
        if write and self.place.waitaof:
            commands.append((b"WAITAOF", 1, 0, int(self.place.timeout_s * 900)))
        found = iter(link.run(commands))
        answers: list[Answer] = []
        for ask in asking:
            if ask:
                next(found)
            answers.append(next(found))
        if write and self.place.waitaof:
            self._check_synced(next(found))
        return answers

    def _check_synced(self, answer: Answer) -> None:
        if isinstance(answer, Exception):
            raise answer
        if cast("list[int]", answer)[0] < 1:
            raise errors.Unavailable(
                f"{self.place.shown} has it, but has not synced it to its disk in time.",
                hint="Retry; with the same key it has one effect. ?timeout_s=60 in the URL waits longer.",
            )

    def _parted(
        self, calls: Sequence[Call], answers: Sequence[Answer], left: Sequence[int]
    ) -> dict[Link, list[int]]:
        parts: dict[Link, list[int]] = {}
        for index in left:
            answer = answers[index]
            link = (
                self._at(str(cast("object", answer.host)), answer.port)
                if isinstance(answer, AskError)
                else self._of(calls[index].key)
            )
            parts.setdefault(link, []).append(index)
        return parts

    def _learn(self, refusals: Sequence[Answer], *, whole: bool) -> bool:
        """Make the next try a better one; return whether scripts have to be sent whole."""
        if not self.place.cluster and any(isinstance(each, MovedError) for each in refusals):
            raise next(each for each in refusals if isinstance(each, MovedError))
        if any(isinstance(each, MovedError) for each in refusals):
            self._forget()
        if any(
            isinstance(each, (TryAgainError, ClusterDownError)) and each is not _UNSENT
            for each in refusals
        ):
            time.sleep(PAUSE_S)
            self._forget()
        return whole or any(isinstance(each, NoScriptError) for each in refusals)

    def only(self) -> Link | None:
        """Return the link to the one server that has everything and syncs before it answers; None if there is no such.

        Nor is there one where a single connection is allowed: whoever kept it would wait for itself at the first look.
        """
        place = self.place
        return None if place.cluster or place.waitaof or place.connections < 2 else self._seed

    def every(self) -> list[Link]:
        """Return a link to each server that takes writes."""
        if not self.place.cluster:
            return [self._seed]
        self._of(b"")
        with self._lock:
            return list(dict.fromkeys(self._slots))

    def _of(self, key: bytes) -> Link:
        if not self.place.cluster:
            return self._seed
        with self._lock:
            slots = self._slots
        if not slots:
            slots = self._look()
        return slots[redis.crc.key_slot(key)]

    def _forget(self) -> None:
        with self._lock:
            self._slots = []

    def forget(self, link: Link) -> None:
        """A server does not answer: look again which one has which slots, and ask that one last."""
        with self._lock:
            self._slots = []
            place = (link.place.host, link.place.port)
            if place in self._links:
                self._links[place] = self._links.pop(place)

    def _at(self, host: str, port: int) -> Link:
        with self._lock:
            link = self._links.get((host, port))
            if link is None:
                link = self._links[host, port] = Link(self.place.at(host, port))
            return link

    def _look(self) -> list[Link]:
        """Ask any server which one has which slots."""
        failure: Exception | None = None
        with self._lock:
            known = list(self._links.values())
        for link in known:
            try:
                (answer,) = link.run([(b"CLUSTER", b"SLOTS")])
                if isinstance(answer, Exception):
                    raise answer
            except translate.KINDS as error:
                self.forget(link)
                failure = failure or error
                continue
            ranges = cast("list[list[list[bytes | int]]]", answer)
            slots: list[Link | None] = [None] * redis.crc.REDIS_CLUSTER_HASH_SLOTS
            for first, last, primary, *_ in ranges:
                host = cast("bytes", primary[0] or b"").decode() or link.place.host
                at = self._at(host, cast("int", primary[1]))
                low, high = cast("int", first), cast("int", last)
                slots[low : high + 1] = [at] * (high + 1 - low)
            if None in slots:
                failure = ClusterDownError("CLUSTERDOWN not every slot has a server")
                continue
            with self._lock:
                self._slots = cast("list[Link]", slots)
                return self._slots
        raise failure or redis.ConnectionError("no server of the cluster answers")

    def close(self) -> None:
        """Close every connection."""
        with self._lock:
            links = list(self._links.values())
        for link in links:
            link.close()
