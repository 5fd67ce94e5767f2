"""Users and tenants that say the same words in sessions of the same ids: none ever reads a word of another."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from limpet import Limpet, errors
from limpet.core.values.validation import checked_id
from tests.acceptance.full_store import opened, worked

TENANTS = ("acme", "acme2")
LOOK_ALIKES = {
    "prefixes": ("ada", "ada2"),
    "a slash": ("ada", "ada/ada"),
    "a colon": ("ada", "ada:ada"),
    "look-alikes": ("ada", "\u0430d\u0430"),
    "composed": ("caf\u00e9", "cafe\u0301"),
    "case": ("ada", "ADA"),
    "a space": ("ada", "ada "),
    "long": ("a" * 200, "a" * 199 + "b"),
    "a number": ("1", "01"),
}
MARK = re.compile(r"[a-z]+mark\d")


def mark(tenant: str, number: int) -> str:
    """Return the one word that only this user of this tenant says, in letters that no other's has."""
    return f"{'xqzj'[2 * TENANTS.index(tenant) + number] * 3}mark{number}"


def talk(lp: Limpet, tenant: str, users: tuple[str, str]) -> None:
    """Have both users say the same things, but for one word of their own."""
    for number, user in enumerate(users):
        word = mark(tenant, number)
        for name in (f"trip-{number}", f"home-{number}"):
            session = lp.sessions.create_session(name, user_id=user, title=f"About {word}")
            for text in (
                f"I live in {word}, near the harbour.",
                f"I am allergic to {word} peanuts.",
                "Which train to the harbour?",
            ):
                session.add_message({"role": "user", "content": text})
                session.add_message({"role": "assistant", "content": f"The harbour, {word}."})
        lp.sessions.end_session(f"trip-{number}")
        lp.sessions.fork_session(f"home-{number}", new_id=f"fork-{number}")
        home = lp.sessions.get_session(f"home-{number}")
        home.trimmed(60, summary="en")
        lp.sessions.create_continuation_session(home)


Reads = dict[str, Callable[[Limpet, str, int], object]]


def exported(lp: Limpet, user: str) -> str:
    sink = io.BytesIO()
    lp.admin.export(sink, user_id=user)
    return sink.getvalue().decode()


def windows(lp: Limpet, user: str) -> Iterator[object]:
    for row in lp.sessions.list_sessions(user_id=user):
        session = lp.sessions.get_session(str(row["id"]))
        for budget in (200, 4_000):
            yield [str(message.content) for message in session.window(budget).messages]
        yield str(session.state.summary), str(session.state.written)


def opens(lp: Limpet, user: str) -> Iterator[object]:
    for hit in lp.archive.search("harbour", user_id=user):
        yield [str(said.message.content) for said in lp.archive.open(hit, 5, user_id=user)]


def tool(lp: Limpet, user: str) -> Iterator[object]:
    given = lp.archive.tool(user)
    for query in ("harbour", "peanuts", "live", "train mark0 mark1"):
        yield given.call({"query": query})
    for hit in lp.archive.search("harbour", user_id=user):
        yield given.call({"session_id": hit.session_id, "message_id": hit.message_id})


READS: Reads = {
    "profile": lambda lp, user, _: lp.memory.profile(user, 4_000).text,
    "facts": lambda lp, user, _: lp.memory.facts(user),
    "memory search": lambda lp, user, _: lp.memory.search(user, "harbour peanuts", limit=50),
    "archive search": lambda lp, user, _: lp.archive.search("harbour train", user_id=user, limit=50),
    "archive open": lambda lp, user, _: list(opens(lp, user)),
    "archive tool": lambda lp, user, _: list(tool(lp, user)),
    "windows": lambda lp, user, _: list(windows(lp, user)),
    "listing": lambda lp, user, _: list(lp.sessions.list_sessions(user_id=user)),
    "export": lambda lp, user, _: exported(lp, user),
    "prompt": lambda lp, user, _: [str(m.content) for m in lp.sessions.create_session(user_id=user).messages],
    "chain": lambda lp, _, number: [
        str(message.content) for session in lp.sessions.session_chain(f"home-{number}") for message in session.messages
    ],
    "fork": lambda lp, _, number: [str(m.content) for m in lp.sessions.get_session(f"fork-{number}").messages],
}


@pytest.fixture(params=sorted(LOOK_ALIKES))
def users(request: pytest.FixtureRequest) -> tuple[str, str]:
    return LOOK_ALIKES[str(request.param)]


def test_no_read_shows_a_word_of_another(fast_dir: Path, users: tuple[str, str]):
    path = fast_dir / "state.db"
    for tenant in TENANTS:
        with opened(path, tenant) as lp:
            talk(lp, tenant, users)
    with opened(path, TENANTS[0]) as lp:
        worked(lp)
    for tenant in TENANTS:
        with opened(path, tenant) as lp:
            for number, user in enumerate(users):
                for name, read in READS.items():
                    shown = set(MARK.findall(_text(read(lp, user, number))))
                    assert shown == {mark(tenant, number)}, (name, tenant, user)
            assert lp.memory.queue() == []


def _text(shown: object) -> str:
    return shown if isinstance(shown, str) else repr(shown)


def test_what_one_is_asked_for_by_its_place_is_nobody_else_s(fast_dir: Path):
    path, users = fast_dir / "state.db", ("ada", "bob")
    for tenant in TENANTS:
        with opened(path, tenant) as lp:
            talk(lp, tenant, users)
            worked(lp)
    with opened(path, TENANTS[0]) as lp:
        (hit, *_) = lp.archive.search("harbour", user_id="bob")
        with pytest.raises(errors.SessionNotFound):
            lp.archive.open(hit, user_id="ada")
        told = lp.archive.tool("ada").call({"session_id": hit.session_id, "message_id": hit.message_id})
        assert mark(TENANTS[0], 1) not in told
        assert "mark1" not in json.dumps(told)
        found = lp.archive.search("harbour", user_id="ada", session_id=hit.session_id)
        assert list(found) == []
        assert list(lp.archive.search(mark(TENANTS[0], 1), user_id=None)) == []
        assert list(lp.memory.search("nobody", "harbour")) == []
        assert lp.memory.facts("nobody") == []


def test_to_forget_one_leaves_those_who_look_like_them(fast_dir: Path, users: tuple[str, str]):
    path = fast_dir / "state.db"
    for tenant in TENANTS:
        with opened(path, tenant) as lp:
            talk(lp, tenant, users)
            worked(lp)
    with opened(path, TENANTS[0]) as lp:
        lp.memory.forget(users[0])
        worked(lp)
        assert lp.memory.facts(users[0]) == []
        left = {"profile", "facts", "memory search", "archive search", "windows", "export", "fork"}
        for name in left:
            shown = set(MARK.findall(_text(READS[name](lp, users[1], 1))))
            assert shown == {mark(TENANTS[0], 1)}, name
    with opened(path, TENANTS[1]) as lp:
        for number, user in enumerate(users):
            shown = set(MARK.findall(_text(lp.memory.facts(user))))
            assert shown == {mark(TENANTS[1], number)}


@pytest.mark.parametrize("user", ["a\0b", "", "a\ud800", "ada\u200b"])
def test_ids_that_no_store_can_keep_apart_are_refused_everywhere(fast_dir: Path, user: str):
    with pytest.raises(errors.Refused):
        checked_id("a user's id", user)
    with opened(fast_dir / "state.db") as lp:
        for read in (
            lambda: lp.memory.profile(user),
            lambda: lp.memory.facts(user),
            lambda: lp.memory.search(user, "x"),
            lambda: lp.memory.forget(user),
            lambda: lp.archive.search("x", user_id=user),
            lambda: lp.archive.tool(user),
            lambda: lp.sessions.create_session(user_id=user),
            lambda: lp.admin.erase(user_id=user),
        ):
            with pytest.raises(errors.Refused):
                read()
