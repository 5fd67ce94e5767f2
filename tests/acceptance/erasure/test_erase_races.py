"""What others write while an erasure is on its way: nothing of what goes is left in it, and nothing of theirs is lost."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import limpet
from limpet import errors, limits
from limpet.admin.erasure import ErasurePlan, ErasureService
from limpet.core.values.memory_records import ProfilePrompt, TenantUser
from limpet.memory.profile import Bootstrap
from limpet.stores.port import ErasureCounts, Stale

SECRET = "Kestrel0001"

Pair = tuple[limpet.Limpet, limpet.Limpet]


@pytest.fixture(params=["volatile", "sqlite"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    """Two clients of one store; of a store that only one process can have, one client twice."""
    if request.param == "volatile":
        with limpet.connect("volatile:", memory=True) as lp:
            yield lp, lp
        return
    path = tmp_path / "state.db"
    with limpet.connect(path, memory=True) as lp, limpet.connect(path, memory=True) as other:
        yield lp, other


def meanwhile(monkeypatch: pytest.MonkeyPatch, does: Callable[[int], object]) -> list[int]:
    """Have something done between each look and its erasure; return the list of those looks."""
    real, looks = ErasureService._erase, list[int]()

    def erase(self: ErasureService, head: int, plan: ErasurePlan) -> ErasureCounts | Stale:
        looks.append(head)
        does(len(looks))
        return real(self, head, plan)

    monkeypatch.setattr(ErasureService, "_erase", erase)
    return looks


def words(session: limpet.Session) -> str:
    return " ".join(str(message.content) for message in session.messages)


def told(lp: limpet.Limpet) -> None:
    session = lp.sessions.create_session("one", user_id="ada")
    session.add_message(limpet.Message("user", "I live in Oslo.", id="m1"))
    lp.sessions.end_session("one")
    lp.worker().run_once()
    assert [fact.text for fact in lp.memory.facts("ada")] == ["I live in Oslo."]


def test_a_summary_made_meanwhile_goes_too(pair: Pair, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    lp, other = pair
    session = lp.sessions.create_session("one", user_id="ada")
    session.add_message(limpet.Message("user", f"My code is {SECRET}.", id="m1"))
    for _ in range(30):
        session.add_message({"role": "assistant", "content": "word " * 40})
        session.add_message({"role": "user", "content": "more " * 40})
    session.trimmed(800)

    def summarized(look: int) -> None:
        if look == 1:
            there = other.sessions.get_session("one")
            assert there.summarize(lambda _messages, _before: f"The code is {SECRET}.")

    looks = meanwhile(monkeypatch, summarized)
    receipt = lp.admin.erase(session_id="one", message_id="m1")
    assert (len(looks), receipt.events) == (2, 2)
    for each in pair:
        summary = each.sessions.get_session("one").state.summary
        assert SECRET not in str(summary)
    for each in pair:
        each.close()
    assert not [path for path in tmp_path.iterdir() if SECRET.encode() in path.read_bytes()]


def test_a_fork_made_meanwhile_keeps_its_history(pair: Pair, monkeypatch: pytest.MonkeyPatch):
    lp, other = pair
    lp.sessions.create_session("one", user_id="ada").add_message({"role": "user", "content": "hi"})

    def forked(look: int) -> None:
        if look == 1:
            other.sessions.fork_session("one", new_id="fork")

    meanwhile(monkeypatch, forked)
    receipt = lp.admin.erase(session_id="one")
    assert (receipt.sessions, receipt.waiting) == (0, 1)
    fork = lp.sessions.get_session("fork")
    assert words(fork) == "hi"
    fork.add_message({"role": "user", "content": "on"})
    assert words(lp.sessions.get_session("fork")) == "hi on"
    assert lp.admin.verify().ok
    with pytest.raises(errors.SessionNotFound):
        lp.sessions.get_session("one")


@pytest.mark.parametrize("message_id", [None, "m1"])
def test_a_session_begun_meanwhile_is_not_told(pair: Pair, monkeypatch: pytest.MonkeyPatch, message_id: str | None):
    lp, other = pair
    told(lp)

    def begun(look: int) -> None:
        if look == 1:
            new = other.sessions.create_session("new", user_id="ada", system="Plan.")
            assert "Oslo" in words(new)

    looks = meanwhile(monkeypatch, begun)
    lp.admin.erase(session_id="one", message_id=message_id)
    assert len(looks) == 2
    new = words(lp.sessions.get_session("new"))
    assert new.startswith("Plan.")
    assert "Oslo" not in new


@pytest.mark.parametrize("begins", ["create", "get", "reset"])
@pytest.mark.parametrize("message_id", [None, "m1"])
def test_what_was_asked_before_is_not_said_after(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, message_id: str | None, begins: str
):
    lp, other = pair
    if begins != "create":
        lp.sessions.create_session("new", user_id="ada")
        lp.sessions.end_session("new")
    told(lp)
    real, said = Bootstrap.opening, list[str]()

    def opening(self: Bootstrap, user: TenantUser) -> ProfilePrompt | None:
        known = real(self, user)
        assert known is not None
        said.append(known.text)
        other.admin.erase(session_id="one", message_id=message_id)
        return known

    monkeypatch.setattr(Bootstrap, "opening", opening)
    if begins == "create":
        lp.sessions.create_session("new", user_id="ada", system="Plan.")
    elif begins == "get":
        lp.sessions.get_or_create_session("new", user_id="ada", system="Plan.")
    else:
        lp.sessions.reset_session("new", system="Plan.")
    assert "Oslo" in said[0]
    assert words(lp.sessions.get_session("new")) == "Plan."


def test_what_is_said_elsewhere_does_not_hold_it_up(pair: Pair, monkeypatch: pytest.MonkeyPatch):
    lp, other = pair
    told(lp)
    busy = other.sessions.create_session("busy", user_id="bob")
    looks = meanwhile(monkeypatch, lambda _: busy.add_message({"role": "user", "content": "hello"}))
    assert lp.admin.erase(session_id="one", message_id="m1").events == 1
    assert len(looks) == 1
    assert words(lp.sessions.get_session("busy")) == "hello"


def test_overtaken_every_time_it_erases_nothing(pair: Pair, monkeypatch: pytest.MonkeyPatch):
    lp, other = pair
    told(lp)
    looks = meanwhile(monkeypatch, lambda look: other.sessions.create_session(f"new{look}"))
    for message_id in ("m1", None):
        looks.clear()
        with pytest.raises(errors.Conflict):
            lp.admin.erase(session_id="one", message_id=message_id)
        assert len(looks) == limits.RETRIES_MAX
        for look in range(1, limits.RETRIES_MAX + 1):
            other.sessions.delete_session(f"new{look}")
    assert words(lp.sessions.get_session("one")) == "I live in Oslo."
