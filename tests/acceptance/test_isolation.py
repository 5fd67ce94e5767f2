"""Users and tenants that say the same words in sessions of the same ids: none ever reads a word of another."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast import Holdfast, errors
from holdfast.values.message import checked_id
from tests.acceptance.whole import opened, worked

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


def talk(hf: Holdfast, tenant: str, users: tuple[str, str]) -> None:
    """Have both users say the same things, but for one word of their own."""
    for number, user in enumerate(users):
        word = mark(tenant, number)
        for name in (f"trip-{number}", f"home-{number}"):
            session = hf.sessions.create_session(name, user_id=user, title=f"About {word}")
            for text in (
                f"I live in {word}, near the harbour.",
                f"I am allergic to {word} peanuts.",
                "Which train to the harbour?",
            ):
                session.add_message({"role": "user", "content": text})
                session.add_message({"role": "assistant", "content": f"The harbour, {word}."})
        hf.sessions.end_session(f"trip-{number}")
        hf.sessions.fork_session(f"home-{number}", new_id=f"fork-{number}")
        home = hf.sessions.get_session(f"home-{number}")
        home.trimmed(60, summary="en")
        hf.sessions.create_continuation_session(home)


Reads = dict[str, Callable[[Holdfast, str, int], object]]


def exported(hf: Holdfast, user: str) -> str:
    sink = io.BytesIO()
    hf.admin.export(sink, user_id=user)
    return sink.getvalue().decode()


def windows(hf: Holdfast, user: str) -> Iterator[object]:
    for row in hf.sessions.list_sessions(user_id=user):
        session = hf.sessions.get_session(str(row["id"]))
        for budget in (200, 4_000):
            yield [str(message.content) for message in session.window(budget).messages]
        yield str(session.state.summary), str(session.state.written)


def opens(hf: Holdfast, user: str) -> Iterator[object]:
    for hit in hf.archive.search("harbour", user_id=user):
        yield [str(said.message.content) for said in hf.archive.open(hit, 5, user_id=user)]


def tool(hf: Holdfast, user: str) -> Iterator[object]:
    given = hf.archive.tool(user)
    for query in ("harbour", "peanuts", "live", "train mark0 mark1"):
        yield given.call({"query": query})
    for hit in hf.archive.search("harbour", user_id=user):
        yield given.call({"session_id": hit.session_id, "message_id": hit.message_id})


READS: Reads = {
    "profile": lambda hf, user, _: hf.memory.profile(user, 4_000).text,
    "facts": lambda hf, user, _: hf.memory.facts(user),
    "memory search": lambda hf, user, _: hf.memory.search(user, "harbour peanuts", k=50),
    "archive search": lambda hf, user, _: hf.archive.search("harbour train", user_id=user, k=50),
    "archive open": lambda hf, user, _: list(opens(hf, user)),
    "archive tool": lambda hf, user, _: list(tool(hf, user)),
    "windows": lambda hf, user, _: list(windows(hf, user)),
    "listing": lambda hf, user, _: list(hf.sessions.list_sessions(user_id=user)),
    "export": lambda hf, user, _: exported(hf, user),
    "prompt": lambda hf, user, _: [
        str(m.content) for m in hf.sessions.create_session(user_id=user).messages
    ],
    "chain": lambda hf, _, number: [
        str(message.content)
        for session in hf.sessions.session_chain(f"home-{number}")
        for message in session.messages
    ],
    "fork": lambda hf, _, number: [
        str(m.content) for m in hf.sessions.get_session(f"fork-{number}").messages
    ],
}


@pytest.fixture(params=sorted(LOOK_ALIKES))
def users(request: pytest.FixtureRequest) -> tuple[str, str]:
    return LOOK_ALIKES[str(request.param)]


def test_no_read_shows_a_word_of_another(fast_dir: Path, users: tuple[str, str]):
    path = fast_dir / "state.db"
    for tenant in TENANTS:
        with opened(path, tenant) as hf:
            talk(hf, tenant, users)
    with opened(path, TENANTS[0]) as hf:
        worked(hf)
    for tenant in TENANTS:
        with opened(path, tenant) as hf:
            for number, user in enumerate(users):
                for name, read in READS.items():
                    shown = set(MARK.findall(_text(read(hf, user, number))))
                    assert shown == {mark(tenant, number)}, (name, tenant, user)
            assert hf.memory.queue() == []


def _text(shown: object) -> str:
    return shown if isinstance(shown, str) else repr(shown)


def test_what_one_is_asked_for_by_its_place_is_nobody_else_s(fast_dir: Path):
    path, users = fast_dir / "state.db", ("ada", "bob")
    for tenant in TENANTS:
        with opened(path, tenant) as hf:
            talk(hf, tenant, users)
            worked(hf)
    with opened(path, TENANTS[0]) as hf:
        (hit, *_) = hf.archive.search("harbour", user_id="bob")
        with pytest.raises(errors.UnknownSession):
            hf.archive.open(hit, user_id="ada")
        told = hf.archive.tool("ada").call(
            {"session_id": hit.session_id, "message_id": hit.message_id}
        )
        assert mark(TENANTS[0], 1) not in told
        assert "mark1" not in json.dumps(told)
        found = hf.archive.search("harbour", user_id="ada", session_id=hit.session_id)
        assert list(found) == []
        assert list(hf.archive.search(mark(TENANTS[0], 1), user_id=None)) == []
        assert list(hf.memory.search("nobody", "harbour")) == []
        assert hf.memory.facts("nobody") == []


def test_to_forget_one_leaves_those_who_look_like_them(fast_dir: Path, users: tuple[str, str]):
    path = fast_dir / "state.db"
    for tenant in TENANTS:
        with opened(path, tenant) as hf:
            talk(hf, tenant, users)
            worked(hf)
    with opened(path, TENANTS[0]) as hf:
        hf.memory.forget(users[0])
        worked(hf)
        assert hf.memory.facts(users[0]) == []
        left = {"profile", "facts", "memory search", "archive search", "windows", "export", "fork"}
        for name in left:
            shown = set(MARK.findall(_text(READS[name](hf, users[1], 1))))
            assert shown == {mark(TENANTS[0], 1)}, name
    with opened(path, TENANTS[1]) as hf:
        for number, user in enumerate(users):
            shown = set(MARK.findall(_text(hf.memory.facts(user))))
            assert shown == {mark(TENANTS[1], number)}


@pytest.mark.parametrize("user", ["a\0b", "", "a\ud800", "ada\u200b"])
def test_ids_that_no_store_can_keep_apart_are_refused_everywhere(fast_dir: Path, user: str):
    with pytest.raises(errors.Refused):
        checked_id("a user's id", user)
    with opened(fast_dir / "state.db") as hf:
        for read in (
            lambda: hf.memory.profile(user),
            lambda: hf.memory.facts(user),
            lambda: hf.memory.search(user, "x"),
            lambda: hf.memory.forget(user),
            lambda: hf.archive.search("x", user_id=user),
            lambda: hf.archive.tool(user),
            lambda: hf.sessions.create_session(user_id=user),
            lambda: hf.admin.erase(user_id=user),
        ):
            with pytest.raises(errors.Refused):
                read()
