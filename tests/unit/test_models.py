"""The adapters of models, through the real client libraries and real sockets, against a scripted endpoint."""

from __future__ import annotations

import asyncio
import pickle
import sys
import traceback
from collections.abc import Iterator
from typing import Any

import pytest

from limpet import errors, limits
from limpet.llm.models import AnthropicModel, Backoff, OpenAIModel
from limpet.llm.port import Reply
from tests.unit import endpoints
from tests.unit.endpoints import Endpoint, Step

KEY = "sk-very-secret-0123456789"
TEXT = "Ada's password is hunter2"


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with endpoints.serving() as served:
        yield served


OPENED: list[OpenAIModel | AnthropicModel] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """Models give back their sockets."""
    yield
    while OPENED:
        OPENED.pop().close()


class OpenAIAsked:
    """A model of one of the two kinds, and what its endpoint answers when all is well."""

    def __init__(self, endpoint: Endpoint, **settings: Any) -> None:
        self.waits: list[float] = []
        pauses = Backoff(sleep=self.waits.append, jitter=lambda: 0.5)
        self.model = self.made(endpoint, {"api_key": KEY, "retries": 2, "pauses": pauses, **settings})
        OPENED.append(self.model)

    def made(self, endpoint: Endpoint, settings: dict[str, Any]) -> OpenAIModel | AnthropicModel:
        return OpenAIModel("small", base_url=f"{endpoint.url}/v1", **settings)

    def answers(self, text: str, finish: str = "stop") -> Step:
        return endpoints.chat(text, finish)


class AnthropicAsked(OpenAIAsked):
    def made(self, endpoint: Endpoint, settings: dict[str, Any]) -> OpenAIModel | AnthropicModel:
        return AnthropicModel("small", base_url=endpoint.url, **settings)

    def answers(self, text: str, finish: str = "stop") -> Step:
        return endpoints.message(text, {"stop": "end_turn", "length": "max_tokens"}[finish])


KINDS = [OpenAIAsked, AnthropicAsked]


@pytest.fixture(params=KINDS, ids=["openai", "anthropic"])
def kind(request: pytest.FixtureRequest) -> type[OpenAIAsked]:
    return request.param


def ask(asked: OpenAIAsked) -> Reply:
    return asked.model.complete("Be brief.", TEXT, tokens_max=50)


def refused(asked: OpenAIAsked, kind: type[errors.Error]) -> errors.Error:
    """Ask, and look through the error with all that hangs on it for what it must not tell."""
    with pytest.raises(kind) as caught:
        ask(asked)
    told = "".join(traceback.format_exception(caught.value)) + repr(vars(caught.value))
    assert KEY not in told and "hunter2" not in told
    assert caught.value.__cause__ is None and caught.value.__context__ is None
    return caught.value


def test_an_answer_comes_with_what_it_took(endpoint: Endpoint, kind: type[OpenAIAsked]):
    asked = kind(endpoint)
    endpoint.steps = [asked.answers("Hello.")]
    assert ask(asked) == Reply("Hello.", "small-1", 7, 3)
    _, headers, body = endpoint.requests[0]
    assert KEY in f"{headers}" and KEY not in f"{body}"
    assert TEXT in f"{body}" and "Be brief." in f"{body}" and body["max_tokens"] == 50
    assert KEY not in repr(asked.model) and asked.model.name == "small"


def test_an_answer_that_was_cut_says_so(endpoint: Endpoint, kind: type[OpenAIAsked]):
    asked = kind(endpoint)
    endpoint.steps = [asked.answers("Hel", "length")]
    assert ask(asked).cut


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 529])
def test_what_may_pass_is_tried_again(endpoint: Endpoint, kind: type[OpenAIAsked], status: int):
    asked = kind(endpoint)
    endpoint.steps = [endpoints.fails(status), endpoints.fails(status), asked.answers("At last.")]
    assert ask(asked).text == "At last."
    assert asked.waits == [0.375, 0.75]


def test_tries_have_an_end(endpoint: Endpoint, kind: type[OpenAIAsked]):
    asked = kind(endpoint)
    failed = refused(asked, errors.Unavailable)
    assert failed.facts == {"status": 500, "tries": 3}
    assert len(endpoint.requests) == 3 and len(asked.waits) == 2


def test_pauses_double_up_to_a_bound():
    pauses = Backoff(jitter=lambda: 0.0)
    assert [pauses.after(tries) for tries in range(1, 7)] == [0.5, 1, 2, 4, 8, 8]
    assert Backoff(jitter=lambda: 1.0).after(3) == 1


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 413, 422])
def test_what_can_not_pass_is_asked_once(endpoint: Endpoint, kind: type[OpenAIAsked], status: int):
    asked = kind(endpoint)
    endpoint.otherwise = endpoints.fails(status, said=f"{KEY}: no such thing as {TEXT}")
    failed = refused(asked, errors.ModelRefused)
    assert failed.facts["status"] == status and "`" in failed.hint
    assert len(endpoint.requests) == 1 and asked.waits == []


@pytest.mark.parametrize(
    ("status", "code", "setting"),
    [
        (401, "invalid_api_key", "api_key"),
        (403, "permission_error", "api_key"),
        (404, "model_not_found", "model"),
        (400, "context_length_exceeded", "window"),
        (400, "unsupported_parameter", "tokens_field"),
    ],
)
def test_an_error_names_the_setting(endpoint: Endpoint, kind: type[OpenAIAsked], status: int, code: str, setting: str):
    asked = kind(endpoint)
    endpoint.otherwise = endpoints.fails(status, code)
    failed = refused(asked, errors.ModelRefused)
    assert setting in failed.hint and failed.facts["code"] == code


@pytest.mark.parametrize("code", [KEY, TEXT, {"a": KEY}, 7])
def test_codes_that_are_not_known_are_not_passed_on(endpoint: Endpoint, kind: type[OpenAIAsked], code: Any):
    asked = kind(endpoint)
    endpoint.otherwise = endpoints.fails(400, code, said=TEXT)
    assert "code" not in refused(asked, errors.ModelRefused).facts


def test_no_credit_is_not_asked_again(endpoint: Endpoint, kind: type[OpenAIAsked]):
    asked = kind(endpoint)
    endpoint.otherwise = endpoints.fails(429, "insufficient_quota")
    assert "credit" in refused(asked, errors.Unavailable).hint
    assert len(endpoint.requests) == 1


@pytest.mark.parametrize(
    ("headers", "wait"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after-ms": "1500", "retry-after": "7"}, 1.5),
        ({"retry-after": "0"}, 0.375),
        ({"retry-after": "soon"}, 0.375),
        ({"retry-after": "-3"}, 0.375),
        ({"retry-after": "nan"}, 0.375),
    ],
)
def test_an_endpoint_that_asks_for_patience_gets_it(
    endpoint: Endpoint, kind: type[OpenAIAsked], headers: dict[str, str], wait: float
):
    asked = kind(endpoint)
    endpoint.steps = [endpoints.fails(429, headers=headers), asked.answers("Thanks.")]
    assert ask(asked).text == "Thanks." and asked.waits == [wait]


def test_a_date_is_patience_too(endpoint: Endpoint, kind: type[OpenAIAsked]):
    asked = kind(endpoint)
    asked_at = "Tue, 17 Nov 2026 10:00:00 GMT"
    headers = {"date": asked_at, "retry-after": "Tue, 17 Nov 2026 10:00:09 GMT"}
    endpoint.steps = [endpoints.fails(503, headers=headers), asked.answers("Thanks.")]
    assert ask(asked).text == "Thanks." and asked.waits == [9.0]


def test_too_much_patience_is_the_callers(endpoint: Endpoint, kind: type[OpenAIAsked]):
    asked = kind(endpoint)
    endpoint.otherwise = endpoints.fails(429, headers={"retry-after": "3600"})
    failed = refused(asked, errors.Unavailable)
    assert failed.facts["retry_after_s"] == 3600
    assert len(endpoint.requests) == 1 and asked.waits == []


@pytest.mark.parametrize("step", [endpoints.cuts, endpoints.breaks_off], ids=lambda s: s.__name__)
def test_a_cut_connection_is_tried_again(endpoint: Endpoint, kind: type[OpenAIAsked], step: Step):
    asked = kind(endpoint)
    endpoint.steps = [step, asked.answers("Again.")]
    assert ask(asked).text == "Again."
    endpoint.otherwise = step
    refused(asked, errors.Unavailable)


@pytest.mark.parametrize("step", [endpoints.hangs, endpoints.drips], ids=lambda s: s.__name__)
def test_a_try_takes_no_longer_than_its_time(endpoint: Endpoint, kind: type[OpenAIAsked], step: Step):
    asked = kind(endpoint, timeout_s=0.2, retries=1)
    endpoint.otherwise = step
    assert "0.2 s" in refused(asked, errors.Unavailable).message
    assert len(endpoint.requests) == 2


def test_nobody_there_is_unavailable(kind: type[OpenAIAsked]):
    with endpoints.serving() as gone:
        pass
    refused(kind(gone), errors.Unavailable)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>busy</html>",
        b'{"choices": [{"mess',
        b"\xff\xfe",
        b"[]",
        b'{"choices": [], "content": []}',
        b'{"choices": [{"message": {"content": 7}}], "content": [{"type": 3}]}',
        b'{"choices": [{"message": {"content": ""}}], "content": [{"type": "text", "text": " "}]}',
        b'{"choices": [{"message": {"content": null}}], "content": [{"type": "thinking"}]}',
    ],
)
def test_an_answer_without_words_is_tried_again(endpoint: Endpoint, kind: type[OpenAIAsked], body: bytes):
    asked = kind(endpoint)
    endpoint.steps = [endpoints.gives(body), asked.answers("Now.")]
    assert ask(asked).text == "Now."
    endpoint.otherwise = endpoints.gives(body)
    refused(asked, errors.Unavailable)


@pytest.mark.parametrize(
    ("openai", "anthropic"),
    [
        (endpoints.chat(None, refusal="I can't."), endpoints.message("No.", "refusal")),
        (endpoints.chat("", "content_filter"), endpoints.message(None, "refusal")),
        (endpoints.chat("", "length"), endpoints.message("", "max_tokens")),
        (endpoints.chat(None, tool_calls=[{"id": "1"}]), endpoints.message("", kind="tool_use")),
    ],
    ids=["refusal", "filter", "nothing but thoughts", "a tool"],
)
def test_what_a_model_will_not_say_is_asked_once(
    endpoint: Endpoint, kind: type[OpenAIAsked], openai: Step, anthropic: Step
):
    asked = kind(endpoint)
    endpoint.otherwise = openai if kind is OpenAIAsked else anthropic
    refused(asked, errors.ModelRefused)
    assert len(endpoint.requests) == 1


def test_an_answer_has_a_bound(endpoint: Endpoint, kind: type[OpenAIAsked], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "MODEL_ANSWER_BYTES_MAX", 1000)
    asked = kind(endpoint)
    endpoint.otherwise = endpoints.gives(b" " * 2000)
    refused(asked, errors.ModelRefused)


def test_parts_of_text_are_joined(endpoint: Endpoint):
    asked = OpenAIAsked(endpoint)
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo."}]
    endpoint.steps = [endpoints.chat(parts)]
    assert ask(asked).text == "Hello."


def test_settings_reach_the_endpoint(endpoint: Endpoint):
    asked = OpenAIAsked(endpoint, tokens_field="max_completion_tokens", temperature=0.0)
    endpoint.steps = [endpoints.chat()]
    ask(asked)
    body = endpoint.requests[0][2]
    assert body["max_completion_tokens"] == 50 and body["temperature"] == 0
    assert "max_tokens" not in body and body["messages"][1]["content"] == TEXT


@pytest.mark.parametrize("made", [OpenAIModel, AnthropicModel])
@pytest.mark.parametrize(
    "wrong",
    [
        {"window": 0},
        {"window": "8k"},
        {"timeout_s": 0},
        {"timeout_s": True},
        {"retries": -1},
        {"base_url": "localhost:80"},
        {"base_url": "http://["},
        {"base_url": "", "api_key": ""},
        {"api_key": f"{KEY}\n"},
        {"api_key": f"{KEY} é"},
        {},
    ],
    ids=str,
)
def test_wrong_settings_are_refused_at_once(
    made: type[OpenAIModel] | type[AnthropicModel], wrong: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(errors.InvalidRequest) as caught:
        made("small", **({"api_key": KEY} if wrong and "api_key" not in wrong else {}), **wrong)
    assert KEY not in "".join(traceback.format_exception(caught.value))


def test_the_environment_has_the_key(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch):
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.setenv(name, f"{KEY}\n")
    for made, step in ((OpenAIModel, endpoints.chat()), (AnthropicModel, endpoints.message())):
        endpoint.steps = [step]
        OPENED.append(made("small", base_url=endpoint.url))
        OPENED[-1].complete("s", "p", tokens_max=5)
        assert KEY in str(endpoint.requests[-1][1])


@pytest.mark.parametrize(("made", "library"), [(OpenAIModel, "openai"), (AnthropicModel, "anthropic")])
def test_a_missing_library_is_named(
    made: type[OpenAIModel] | type[AnthropicModel], library: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(errors.NotInstalled) as caught:
        made("small", api_key=KEY)
    assert caught.value.hint == f"Install it with: {sys.executable} -m pip install {library}"


def test_errors_travel(endpoint: Endpoint, kind: type[OpenAIAsked]):
    failed = refused(kind(endpoint), errors.Unavailable)
    again = pickle.loads(pickle.dumps(failed))
    assert (type(again), again.facts, str(again)) == (type(failed), failed.facts, str(failed))


def test_it_is_asked_from_asyncio_in_a_thread(endpoint: Endpoint, kind: type[OpenAIAsked]):
    asked = kind(endpoint)
    endpoint.steps = [asked.answers("Hello."), asked.answers("Hello.")]

    async def both() -> list[Reply]:
        asking = (asyncio.to_thread(ask, asked) for _ in range(2))
        return await asyncio.gather(*asking)

    assert [reply.text for reply in asyncio.run(both())] == ["Hello.", "Hello."]
