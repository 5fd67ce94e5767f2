"""What others write while an erasure is on its way: nothing of what goes is left in it, and nothing of theirs is lost."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

import holdfast
from holdfast import errors, limits
from holdfast.engine.bootstrapping import Bootstrap
from holdfast.engine.erasing import Erasing
from holdfast.engine.pending import Todo
from holdfast.store.erasure import Erased, Share
from holdfast.store.port import Stale
from holdfast.values.memory import Who
from holdfast.values.opening import Opening

SECRET = "Kestrel0001"

Pair = tuple[holdfast.Holdfast, holdfast.Holdfast]


@pytest.fixture(params=["volatile", "sqlite"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    """Two clients of one store; of a store that only one process can have, one client twice."""
    if request.param == "volatile":
        with holdfast.connect("volatile:", memory=True) as hf:
            yield hf, hf
        return
    path = tmp_path / "state.db"
    with holdfast.connect(path, memory=True) as hf, holdfast.connect(path, memory=True) as other:
        yield hf, other


def meanwhile(monkeypatch: pytest.MonkeyPatch, does: Callable[[int], object]) -> list[int]:
    """Have something done between each look and its erasure; return the list of those looks."""
    real, looks = Erasing._erase, list[int]()

    def erase(
        self: Erasing, head: int, shares: tuple[Share, ...], todo: Sequence[Todo]
    ) -> Erased | Stale:
        looks.append(head)
        does(len(looks))
        return real(self, head, shares, todo)

    monkeypatch.setattr(Erasing, "_erase", erase)
    return looks


def words(session: holdfast.Session) -> str:
    return " ".join(str(message.content) for message in session.messages)


def told(hf: holdfast.Holdfast) -> None:
    session = hf.sessions.create_session("one", user_id="ada")
    session.add_message(holdfast.Message("user", "I live in Oslo.", id="m1"))
    hf.sessions.end_session("one")
    hf.worker().run_once()
    assert [fact.text for fact in hf.memory.facts("ada")] == ["I live in Oslo."]


def test_a_summary_made_meanwhile_goes_too(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    hf, other = pair
    session = hf.sessions.create_session("one", user_id="ada")
    session.add_message(holdfast.Message("user", f"My code is {SECRET}.", id="m1"))
    for _ in range(30):
        session.add_message({"role": "assistant", "content": "word " * 40})
        session.add_message({"role": "user", "content": "more " * 40})
    session.trimmed(800)

    def summarized(look: int) -> None:
        if look == 1:
            there = other.sessions.get_session("one")
            assert there.summarize(lambda _messages, _before: f"The code is {SECRET}.")

    looks = meanwhile(monkeypatch, summarized)
    receipt = hf.admin.erase(session_id="one", message_id="m1")
    assert (len(looks), receipt.events) == (2, 2)
    for each in pair:
        summary = each.sessions.get_session("one").state.summary
        assert SECRET not in str(summary)
    for each in pair:
        each.close()
    assert not [path for path in tmp_path.iterdir() if SECRET.encode() in path.read_bytes()]


def test_a_fork_made_meanwhile_keeps_its_history(pair: Pair, monkeypatch: pytest.MonkeyPatch):
    hf, other = pair
    hf.sessions.create_session("one", user_id="ada").add_message({"role": "user", "content": "hi"})

    def forked(look: int) -> None:
        if look == 1:
            other.sessions.fork_session("one", new_id="fork")

    meanwhile(monkeypatch, forked)
    receipt = hf.admin.erase(session_id="one")
    assert (receipt.sessions, receipt.waiting) == (0, 1)
    fork = hf.sessions.get_session("fork")
    assert words(fork) == "hi"
    fork.add_message({"role": "user", "content": "on"})
    assert words(hf.sessions.get_session("fork")) == "hi on"
    assert hf.admin.verify().ok
    with pytest.raises(errors.UnknownSession):
        hf.sessions.get_session("one")


@pytest.mark.parametrize("message_id", [None, "m1"])
def test_a_session_begun_meanwhile_is_not_told(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, message_id: str | None
):
    hf, other = pair
    told(hf)

    def begun(look: int) -> None:
        if look == 1:
            new = other.sessions.create_session("new", user_id="ada", system="Plan.")
            assert "Oslo" in words(new)

    looks = meanwhile(monkeypatch, begun)
    hf.admin.erase(session_id="one", message_id=message_id)
    assert len(looks) == 2
    new = words(hf.sessions.get_session("new"))
    assert new.startswith("Plan.")
    assert "Oslo" not in new


@pytest.mark.parametrize("begins", ["create", "get", "reset"])
@pytest.mark.parametrize("message_id", [None, "m1"])
def test_what_was_asked_before_is_not_said_after(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, message_id: str | None, begins: str
):
    hf, other = pair
    if begins != "create":
        hf.sessions.create_session("new", user_id="ada")
        hf.sessions.end_session("new")
    told(hf)
    real, said = Bootstrap.opening, list[str]()

    def opening(self: Bootstrap, who: Who) -> Opening | None:
        known = real(self, who)
        assert known is not None
        said.append(known.text)
        other.admin.erase(session_id="one", message_id=message_id)
        return known

    monkeypatch.setattr(Bootstrap, "opening", opening)
    if begins == "create":
        hf.sessions.create_session("new", user_id="ada", system="Plan.")
    elif begins == "get":
        hf.sessions.get_or_create_session("new", user_id="ada", system="Plan.")
    else:
        hf.sessions.reset_session("new", system="Plan.")
    assert "Oslo" in said[0]
    assert words(hf.sessions.get_session("new")) == "Plan."


def test_what_is_said_elsewhere_does_not_hold_it_up(pair: Pair, monkeypatch: pytest.MonkeyPatch):
    hf, other = pair
    told(hf)
    busy = other.sessions.create_session("busy", user_id="bob")
    looks = meanwhile(monkeypatch, lambda _: busy.add_message({"role": "user", "content": "hello"}))
    assert hf.admin.erase(session_id="one", message_id="m1").events == 1
    assert len(looks) == 1
    assert words(hf.sessions.get_session("busy")) == "hello"


def test_overtaken_every_time_it_erases_nothing(pair: Pair, monkeypatch: pytest.MonkeyPatch):
    hf, other = pair
    told(hf)
    looks = meanwhile(monkeypatch, lambda look: other.sessions.create_session(f"new{look}"))
    for message_id in ("m1", None):
        looks.clear()
        with pytest.raises(errors.Conflict):
            hf.admin.erase(session_id="one", message_id=message_id)
        assert len(looks) == limits.RETRIES_MAX
        for look in range(1, limits.RETRIES_MAX + 1):
            other.sessions.delete_session(f"new{look}")
    assert words(hf.sessions.get_session("one")) == "I live in Oslo."
