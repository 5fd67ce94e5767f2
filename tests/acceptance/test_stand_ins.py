"""Where rules stood in for a model that was away, it is asked again once it answers: seldom, once, and never for what is forgotten."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast
from holdfast import Holdfast, errors, limits
from holdfast.engine.jobs import Jobs
from holdfast.models.port import Reply
from tests.acceptance.scenes import Opener, engine_of, user


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


def told(hf: Holdfast, session_id: str, text: str = "I live in Oslo.", of: str = "ada") -> None:
    hf.sessions.get_or_create_session(session_id, user_id=of)
    hf.sessions.add_messages(session_id, [user(text)])
    hf.sessions.end_session(session_id)


def known(hf: Holdfast, of: str = "ada") -> list[str]:
    return [fact.text for fact in hf.memory.facts(of)]


def waiting(hf: Holdfast) -> int:
    return len(Jobs(engine_of(hf).store, "default").stand_ins())


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Model:
    monkeypatch.setattr(limits, "BACKOFF_S", 0.0)
    return Model()


@pytest.mark.req("A-16")
def test_a_model_that_was_away_is_asked_again_and_its_word_takes_the_place_of_the_rules(
    opener: Opener, model: Model
):
    hf = opener(memory=True, model=model)
    told(hf, "s")
    hf.worker().run_once()
    assert known(hf) == ["I live in Oslo."]
    assert waiting(hf) == 1 and hf.memory.queue() == []
    model.away = False
    hf.worker().run_once()
    assert known(hf) == ["Lives by the sea."]
    assert waiting(hf) == 0
    asked = model.asked
    hf.worker().run_once()
    assert model.asked == asked, "once is enough"


def test_a_model_that_stays_away_is_asked_ever_more_rarely(
    opener: Opener, model: Model, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(limits, "BACKOFF_S", 1_000.0)
    hf = opener(memory=True, model=model)
    for number in range(5):
        told(hf, f"s{number}")
    hf.worker().run_once()
    asked = model.asked
    assert asked == 5 + 1, "of those in which rules stand in, one is tried"
    for _ in range(3):
        hf.worker().run_once()
    assert model.asked == asked


def test_what_a_model_always_fails_at_hinders_no_other_and_is_left_at_last(
    opener: Opener, model: Model, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(limits, "STAND_IN_TRIES_MAX", 4)
    hf = opener(memory=True, model=model)
    told(hf, "bad", "I live in Bergen.", of="bea")
    told(hf, "good")
    hf.worker().run_once()
    model.away, model.shuns = False, "Bergen"
    for _ in range(3):
        hf.worker().run_once()
    assert known(hf) == ["Lives by the sea."]
    for _ in range(9):
        hf.worker().run_once()
    assert waiting(hf) == 0
    assert known(hf, "bea") == ["I live in Bergen."], "what rules have found stands"
    asked = model.asked
    hf.worker().run_once()
    assert model.asked == asked


@pytest.mark.parametrize(
    "forget",
    [
        lambda hf: hf.memory.forget("ada"),
        lambda hf: hf.admin.erase(session_id="s"),
        lambda hf: hf.sessions.delete_session("s"),
    ],
    ids=["forgotten", "erased", "deleted"],
)
@pytest.mark.parametrize("late", [False, True], ids=["before", "meanwhile"])
def test_what_was_forgotten_is_not_learnt_again(
    opener: Opener, model: Model, forget: Callable[[Holdfast], object], late: bool
):
    hf = opener(memory=True, model=model)
    told(hf, "s")
    hf.worker().run_once()
    model.away = False
    if late:
        model.meanwhile = lambda: forget(hf)
    else:
        forget(hf)
    for _ in range(3):
        hf.worker().run_once()
        model.meanwhile = lambda: None
    assert "Lives by the sea." not in known(hf)
    assert waiting(hf) == 0


def test_without_the_model_what_stands_in_waits(fast_dir: Path, model: Model):
    with holdfast.connect(fast_dir / "state.db", memory=True, model=model) as hf:
        told(hf, "s")
        hf.worker().run_once()
    with holdfast.connect(fast_dir / "state.db", memory=True) as hf:
        hf.worker().run_once()
        assert waiting(hf) == 1
