"""Where rules stood in for a model that was away, it is asked again once it answers: seldom, once, and never for what is forgotten."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import limpet
from limpet import Limpet, errors, limits
from limpet.jobs.offload import OffloadQueue
from limpet.llm.port import Reply
from tests.acceptance.conversation_steps import Opener, engine_of, user


class Model:
    """Finds one fact in whatever it is shown, unless it is away, or can't bear a word of it."""

    name, window = "model", 8_000

    def __init__(self) -> None:
        self.away = True
        self.shuns = ""
        self.asked = 0
        self.meanwhile: Callable[[], object] = lambda: None

    def complete(self, system: str, prompt: str, *, tokens_max: int) -> Reply:
        self.asked += 1
        if self.away or (self.shuns and self.shuns in prompt):
            raise errors.Unavailable
        self.meanwhile()
        found = {"kind": "fact", "text": "Lives by the sea.", "about": "home", "source": 1}
        return Reply(json.dumps({"facts": [found]}), "model")


def told(lp: Limpet, session_id: str, text: str = "I live in Oslo.", of: str = "ada") -> None:
    lp.sessions.get_or_create_session(session_id, user_id=of)
    lp.sessions.add_messages(session_id, [user(text)])
    lp.sessions.end_session(session_id)


def known(lp: Limpet, of: str = "ada") -> list[str]:
    return [fact.text for fact in lp.memory.facts(of)]


def waiting(lp: Limpet) -> int:
    return len(OffloadQueue(engine_of(lp).store, "default").reextractions())


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Model:
    monkeypatch.setattr(limits, "BACKOFF_S", 0.0)
    return Model()


@pytest.mark.req("A-16")
def test_a_model_that_was_away_is_asked_again_and_its_word_takes_the_place_of_the_rules(opener: Opener, model: Model):
    lp = opener(memory=True, model=model)
    told(lp, "s")
    lp.worker().run_once()
    assert known(lp) == ["I live in Oslo."]
    assert waiting(lp) == 1 and lp.memory.queue() == []
    model.away = False
    lp.worker().run_once()
    assert known(lp) == ["Lives by the sea."]
    assert waiting(lp) == 0
    asked = model.asked
    lp.worker().run_once()
    assert model.asked == asked, "once is enough"


def test_a_model_that_stays_away_is_asked_ever_more_rarely(
    opener: Opener, model: Model, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(limits, "BACKOFF_S", 1_000.0)
    lp = opener(memory=True, model=model)
    for number in range(5):
        told(lp, f"s{number}")
    lp.worker().run_once()
    asked = model.asked
    assert asked == 5 + 1, "of those in which rules stand in, one is tried"
    for _ in range(3):
        lp.worker().run_once()
    assert model.asked == asked


def test_what_a_model_always_fails_at_hinders_no_other_and_is_left_at_last(
    opener: Opener, model: Model, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(limits, "REEXTRACTION_TRIES_MAX", 4)
    lp = opener(memory=True, model=model)
    told(lp, "bad", "I live in Bergen.", of="bea")
    told(lp, "good")
    lp.worker().run_once()
    model.away, model.shuns = False, "Bergen"
    for _ in range(3):
        lp.worker().run_once()
    assert known(lp) == ["Lives by the sea."]
    for _ in range(9):
        lp.worker().run_once()
    assert waiting(lp) == 0
    assert known(lp, "bea") == ["I live in Bergen."], "what rules have found stands"
    asked = model.asked
    lp.worker().run_once()
    assert model.asked == asked


@pytest.mark.parametrize(
    "forget",
    [
        lambda lp: lp.memory.forget("ada"),
        lambda lp: lp.admin.erase(session_id="s"),
        lambda lp: lp.sessions.delete_session("s"),
    ],
    ids=["forgotten", "erased", "deleted"],
)
@pytest.mark.parametrize("late", [False, True], ids=["before", "meanwhile"])
def test_what_was_forgotten_is_not_learnt_again(
    opener: Opener, model: Model, forget: Callable[[Limpet], object], late: bool
):
    lp = opener(memory=True, model=model)
    told(lp, "s")
    lp.worker().run_once()
    model.away = False
    if late:
        model.meanwhile = lambda: forget(lp)
    else:
        forget(lp)
    for _ in range(3):
        lp.worker().run_once()
        model.meanwhile = lambda: None
    assert "Lives by the sea." not in known(lp)
    assert waiting(lp) == 0


def test_without_the_model_what_stands_in_waits(fast_dir: Path, model: Model):
    with limpet.connect(fast_dir / "state.db", memory=True, model=model) as lp:
        told(lp, "s")
        lp.worker().run_once()
    with limpet.connect(fast_dir / "state.db", memory=True) as lp:
        lp.worker().run_once()
        assert waiting(lp) == 1
