"""Every misuse has its own error, which names the way out and leaves nothing half-written."""

from __future__ import annotations

import inspect
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import Limpet, Message, Session, ToolCallResult, errors, limits
from tests.acceptance.cli.command_runs import run
from tests.acceptance.conversation_steps import Opener, answer, asking, feed, giving, user


def nested(depth: int) -> Any:
    value: Any = "leaf"
    for _ in range(depth):
        value = [value]
    return value


Misuse = Callable[[Limpet, Session], object]

# Name → (misuse, the error, words of the error that say what to do).
MISUSES: dict[str, tuple[Misuse, type[errors.Error], str]] = {
    "unknown session": (
        lambda lp, s: lp.sessions.get_session("nobody"), errors.SessionNotFound, "get_or_create_session"),
    "adding to an unknown session": (
        lambda lp, s: lp.sessions.add_messages("nobody", [user()]), errors.SessionNotFound, "create"),
    "duplicate id": (
        lambda lp, s: lp.sessions.create_session("s"), errors.DuplicateSession, "get_or_create_session"),
    "key reused for another command": (
        lambda lp, s: s.add_message(user("other"), key="used"), errors.KeyReused, "new key"),
    "result without call": (
        lambda lp, s: s.add_message(giving("nobody")), errors.ResultWithoutCall, "pending_calls"),
    "second result": (
        lambda lp, s: s.add_message(giving("answered")), errors.SecondResult, "already"),
    "another message with a used id": (
        lambda lp, s: s.add_message(Message("user", "y", id="m1")), errors.DuplicateMessage, "own id"),
    "wrong role": (
        lambda lp, s: s.add_message({"role": "bot", "content": "x"}), errors.WrongRole, "Use system"),
    "calls of a user": (
        lambda lp, s: s.add_message({"role": "user", "content": "x", "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}),
        errors.WrongRole, "assistant"),
    "oversized message": (
        lambda lp, s: s.add_message(user("x" * limits.MESSAGE_BYTES_MAX)), errors.TooLarge, "reference"),
    "oversized result": (
        lambda lp, s: s.add_messages([asking("z"), Message(
            "tool", tool_results=[ToolCallResult("z", "x" * limits.MESSAGE_BYTES_MAX)])]),
        errors.TooLarge, "reference"),
    "oversized metadata": (
        lambda lp, s: lp.sessions.update_session("s", metadata={"k": "x" * 70_000}),
        errors.TooLarge, "outside"),
    "oversized title": (
        lambda lp, s: lp.sessions.update_session("s", title="x" * 2_000), errors.TooLarge, "at most"),
    "too many at once": (
        lambda lp, s: s.add_messages([user()] * (limits.BATCH_MESSAGES_MAX + 1)),
        errors.TooLarge, "several steps"),
    "over-deep": (
        lambda lp, s: s.add_message({"role": "user", "content": [nested(100)]}),
        errors.TooDeep, "Flatten"),
    "over-deep metadata": (
        lambda lp, s: lp.sessions.update_session("s", metadata={"k": nested(100)}),
        errors.TooDeep, "Flatten"),
    "not JSON": (
        lambda lp, s: s.add_message({"role": "user", "content": [{1, 2}]}), errors.NotJson, "Use dict"),
    "NaN": (
        lambda lp, s: s.add_message({"role": "user", "content": [float("nan")]}), errors.NotJson, "Use"),
    "not JSON metadata": (
        lambda lp, s: lp.sessions.create_session(metadata={"k": b"x"}), errors.NotJson, "Use dict"),
    "metadata that is no object": (
        lambda lp, s: lp.sessions.create_session(metadata=[1]),  # pyright: ignore[reportArgumentType] - on purpose
        errors.NotJson, "dict"),
    "broken arguments": (
        lambda lp, s: s.add_message({"role": "assistant", "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{"}}]}),
        errors.NotJson, "arguments"),
    "bad encoding": (
        lambda lp, s: s.add_message(user("\ud800")), errors.BadEncoding, "Decode it again"),
    "bad encoding in a title": (
        lambda lp, s: lp.sessions.update_session("s", title="\ud800"), errors.BadEncoding, "Decode"),
    "stale version": (
        lambda lp, s: s.add_message(user(), expected_version=1), errors.StaleVersion, "Load it again"),
    "anything while calls are open": (
        lambda lp, s: lp.sessions.get_session("open").add_message(user()),
        errors.OpenCalls, "close_pending_calls"),
    "adding to an ended session": (
        lambda lp, s: lp.sessions.get_session("ended").add_message(user()),
        errors.SessionEnded, "reset_session"),
    "no message at all": (
        lambda lp, s: s.add_messages([]), errors.InvalidRequest, "no message"),
    "something that is no message": (
        lambda lp, s: s.add_message("hello"),  # pyright: ignore[reportArgumentType] - on purpose
        errors.InvalidMessage, "For example"),
    "a title that is no text": (
        lambda lp, s: lp.sessions.update_session("s", title=5),  # pyright: ignore[reportArgumentType] - on purpose
        errors.Refused, "text"),
    "derived metadata": (
        lambda lp, s: lp.sessions.update_session("s", metadata={"continued_to": "x"}),
        errors.InvalidRequest, "derived"),
    "an id with a line break": (
        lambda lp, s: lp.sessions.create_session("a\nb"), errors.InvalidRequest, "control"),
    "an id that is too long": (
        lambda lp, s: lp.sessions.create_session("x" * 300), errors.InvalidRequest, "1 to 256"),
    "an id that is no text": (
        lambda lp, s: lp.sessions.load_session(5),  # pyright: ignore[reportArgumentType] - on purpose
        errors.InvalidRequest, "text"),
    "an unknown call": (
        lambda lp, s: s.close_pending_calls(call_ids=["nobody"]), errors.CallNotFound, "no open call"),
    "a continuation of nothing": (
        lambda lp, s: _without_current(lp).create_continuation_session(),
        errors.NoCurrentSession, "create or load"),
    "an endless idle time": (
        lambda lp, s: lp.sessions.expire(idle_s=float("inf")), errors.InvalidRequest, "seconds"),
    "an id in the place of a session": (
        lambda lp, s: lp.sessions.save_session("s"),  # pyright: ignore[reportArgumentType] - on purpose
        errors.InvalidRequest, "get_session"),
    "more days than there are": (
        lambda lp, s: lp.admin.retention(1e300), errors.InvalidRequest, "at most 1,000,000"),
}  # fmt: skip


def _without_current(lp: Limpet) -> limpet.SessionManager:
    lp.sessions.current_session = None
    return lp.sessions


@pytest.fixture
def scene(opener: Opener) -> tuple[Limpet, Session]:
    lp = opener()
    open_ = lp.sessions.create_session("open")
    open_.add_messages([user(), asking("a")])
    lp.sessions.create_session("ended")
    lp.sessions.end_session("ended")
    session = lp.sessions.create_session("s")
    session.add_message(Message("user", "x", id="m1"), key="used")
    session.add_messages([asking("answered"), giving("answered")])
    return lp, session


@pytest.mark.parametrize("misuse", MISUSES)
def test_the_error_is_its_own_names_the_fix_and_leaves_nothing(scene: tuple[Limpet, Session], misuse: str):
    lp, session = scene
    act, expected, words = MISUSES[misuse]
    before = feed(lp), session.state, lp.sessions.list_sessions()
    with pytest.raises(expected) as caught:
        act(lp, session)
    error = caught.value
    assert words in str(error)
    assert (feed(lp), session.state, lp.sessions.list_sessions()) == before
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error) and str(again) == str(error) and again.facts == error.facts
    session.add_message(answer("and the session goes on"))


def test_one_callers_mistake_does_not_fail_its_neighbours(scene: tuple[Limpet, Session]):
    """Requests that are committed together are still answered each for itself."""
    import asyncio

    async def together() -> list[object]:
        async with limpet.connect_async("volatile:") as lp:
            await lp.sessions.create_session("s")
            odd = Message("user", "x", id="same")
            made = [lp.sessions.add_messages("s", [user(str(n))]) for n in range(5)]
            made += [lp.sessions.add_messages("s", [giving("nobody")])]
            made += [lp.sessions.add_messages("nobody", [user()])]
            made += [lp.sessions.update_session("s", title=5)]  # pyright: ignore[reportArgumentType] - on purpose
            made += [lp.sessions.add_messages("s", [odd]) for _ in range(2)]
            made += [lp.sessions.add_messages("s", [Message("user", "y", id="same")])]
            made += [lp.sessions.add_messages("s", [user(str(n))]) for n in range(5)]
            return list(await asyncio.gather(*made, return_exceptions=True))

    done = asyncio.run(together())
    kinds = [type(one).__name__ for one in done if isinstance(one, BaseException)]
    assert len(kinds) == 4
    assert kinds[:2] == ["ResultWithoutCall", "SessionNotFound"]
    assert kinds[3] == "DuplicateMessage"


def every_error() -> list[type[errors.Error]]:
    return [one for _, one in inspect.getmembers(errors, inspect.isclass) if issubclass(one, errors.Error)]


def test_codes_are_stable_and_unique():
    codes = {one.__name__: one.code for one in every_error()}
    assert len(set(codes.values())) == len(codes)
    stable = {
        "SessionNotFound": "session_not_found", "DuplicateSession": "duplicate_session",
        "KeyReused": "key_reused", "StaleVersion": "stale_version", "SecondResult": "second_result",
        "ResultWithoutCall": "result_without_call", "OpenCalls": "open_calls",
        "WrongRole": "wrong_role", "NotJson": "not_json", "BadEncoding": "bad_encoding",
        "TooLarge": "too_large", "TooDeep": "too_deep", "SessionEnded": "session_ended",
        "EngineClosed": "engine_closed", "ForkedEngine": "forked_engine", "StoreFull": "store_full",
        "StoreBusy": "store_busy", "StoreReadOnly": "store_read_only", "NotAStore": "not_a_store",
        "NewerStore": "newer_store", "UnsafeStore": "unsafe_store", "Corrupt": "corrupt",
    }  # fmt: skip
    assert {name: codes[name] for name in stable} == stable


@pytest.mark.parametrize("kind", every_error(), ids=lambda kind: kind.__name__)
def test_every_error_explains_itself_and_survives_pickling(kind: type[errors.Error]):
    plain = kind()
    assert len(str(plain)) > 15
    assert getattr(limpet.errors, kind.__name__) is kind
    made = kind("What happened.", hint="What to do.", facts={"n": 1})
    assert str(made) == "What happened. What to do."
    again = pickle.loads(pickle.dumps(made))
    assert (again.message, again.hint, again.facts) == ("What happened.", "What to do.", {"n": 1})


def test_errors_never_carry_words_of_the_conversation(scene: tuple[Limpet, Session]):
    _, session = scene
    secret = "correct horse battery staple"
    for bad in (
        {"role": "user", "content": [secret, {1}]},
        {"role": "user", "content": secret + "\ud800"},
        {"role": "tool", "tool_call_id": "nobody", "content": secret},
        Message("user", secret * 400_000),
        Message("user", secret, id="m1"),
    ):
        with pytest.raises(errors.Error) as caught:
            session.add_message(bad)
        assert secret not in f"{caught.value} {caught.value.facts}"


VERBS: dict[str, Misuse] = {
    "create": lambda lp, s: lp.sessions.create_session(),
    "get_or_create": lambda lp, s: lp.sessions.get_or_create_session("s"),
    "load": lambda lp, s: lp.sessions.load_session("s"),
    "get": lambda lp, s: lp.sessions.get_session("s"),
    "list": lambda lp, s: lp.sessions.list_sessions(),
    "add": lambda lp, s: s.add_message(user()),
    "update": lambda lp, s: lp.sessions.update_session("s", title="x"),
    "save": lambda lp, s: lp.sessions.save_session(s),
    "end": lambda lp, s: lp.sessions.end_session("s"),
    "reset": lambda lp, s: lp.sessions.reset_session("s"),
    "delete": lambda lp, s: lp.sessions.delete_session("s"),
    "expire": lambda lp, s: lp.sessions.expire(),
    "continue": lambda lp, s: lp.sessions.create_continuation_session(s),
    "pending": lambda lp, s: lp.sessions.get_session("open").pending_calls(),
    "close calls": lambda lp, s: lp.sessions.close_pending_calls("open"),
    "chain": lambda lp, s: lp.sessions.session_chain("s"),
    "messages": lambda lp, s: list(s.messages),
    "one message": lambda lp, s: s.messages[0],
    "reload": lambda lp, s: s.reload(),
    "feed": lambda lp, s: list(lp.events.feed()),
    "status": lambda lp, s: lp.admin.status(),
    "verify": lambda lp, s: lp.admin.verify(),
    "backup": lambda lp, s: lp.admin.backup("never-written.db"),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_closed_engine_says_so_in_every_verb(scene: tuple[Limpet, Session], verb: str):
    lp, session = scene
    lp.close()
    with pytest.raises(errors.EngineClosed, match=r"limpet\.connect"):
        VERBS[verb](lp, session)


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("mysql://host/db", errors.UnknownScheme),
        ("s3://bucket/key", errors.UnknownScheme),
        ("sqlite://host/path", errors.InvalidRequest),
        ("sqlite:///", errors.InvalidRequest),
        ("", errors.InvalidRequest),
        ("no/such/folder/state.db", errors.InvalidRequest),
        (".", errors.InvalidRequest),
    ],
)
def test_a_url_that_names_no_store_is_refused(
    url: str, error: type[errors.Error], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error) as caught:
        limpet.connect(url)
    assert caught.value.hint or "write" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("url", ["afile/state.db", "afile/no/state.db", "files:afile/state"])
def test_a_file_in_the_place_of_a_folder_is_named(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "afile").write_bytes(b"x")
    with pytest.raises(errors.InvalidRequest, match="afile is a file, not a folder") as caught:
        limpet.connect(url)
    assert "mkdir" not in str(caught.value)
    told = run("status", url, cwd=tmp_path)
    assert told.code == 3 and "afile is a file, not a folder" in told.err


def test_an_engine_that_nobody_closed_is_named_in_a_warning():
    with pytest.warns(ResourceWarning, match=r"test_error_texts\.py:\d+, was never closed"):
        limpet.connect("volatile:")


@pytest.mark.parametrize("keep", ["kept = [lp]; kept.append(kept)", "import json; json.kept = lp"])
def test_an_engine_that_is_still_open_when_the_program_ends_is_named_too(tmp_path: Path, keep: str):
    url = f"sqlite://{tmp_path / 'state.db'}"
    limpet.connect(url).close()
    program = f"import limpet\nlp = limpet.connect({url!r})\n{keep}"
    done = subprocess.run(
        [sys.executable, "-W", "always::ResourceWarning", "-c", program],
        capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    assert f"{url}, opened at <string>:2, was never closed" in done.stderr
    assert "Exception ignored" not in done.stderr
