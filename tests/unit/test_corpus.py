import gzip
import hashlib
import itertools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests import corpus
from tests.corpus import ChatMessage

SAMPLE = 200


def generated(parallel: bool) -> list[list[ChatMessage]]:
    return list(corpus.conversations(7, SAMPLE, parallel=parallel))


def digest(messages: Iterable[ChatMessage]) -> str:
    whole = hashlib.sha256()
    for message in messages:
        whole.update(corpus.compact_json(message))
    return whole.hexdigest()


def calls_of(message: ChatMessage) -> list[dict[str, Any]]:
    calls = message.get("tool_calls", [])
    assert isinstance(calls, list)
    return calls


def open_calls_by_step(conversation: list[ChatMessage]) -> list[set[str]]:
    """Follow the conversation; fail on a call opened twice or a result without a call."""
    waiting: set[str] = set()
    steps: list[set[str]] = []
    for message in conversation:
        if message["role"] == "tool":
            waiting.remove(str(message["tool_call_id"]))
        elif waiting:
            pytest.fail("a turn began while calls were open")
        for call in calls_of(message):
            assert call["id"] not in waiting
            waiting.add(call["id"])
        steps.append(set(waiting))
    return steps


@pytest.mark.parametrize("parallel", [False, True])
def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(parallel: bool):
    first, again, other = (
        digest(itertools.chain.from_iterable(corpus.conversations(seed, 20, parallel))) for seed in (1, 1, 2)
    )

    assert first == again != other


def test_the_bytes_are_the_same_on_every_interpreter():
    known = "20e696fc1494c7602daa2ea97ba93aeb7a3a7583e4e42e0c98e6b8a488d62bcd"

    assert digest(itertools.islice(corpus.endless(1), 500)) == known


@pytest.mark.parametrize("parallel", [False, True])
def test_every_call_is_answered_once_and_no_id_is_open_twice(parallel: bool):
    for conversation in generated(parallel):
        assert open_calls_by_step(conversation)[-1] == set()


@pytest.mark.parametrize("parallel", [False, True])
def test_call_ids_come_back_within_a_conversation(parallel: bool):
    repeating = 0
    for conversation in generated(parallel):
        ids = [call["id"] for message in conversation for call in calls_of(message)]
        repeating += len(set(ids)) < len(ids)

    assert repeating > SAMPLE / 10


def test_only_the_parallel_corpus_asks_for_several_calls_at_once():
    def widths(parallel: bool) -> set[int]:
        return {len(calls_of(m)) for c in generated(parallel) for m in c} - {0}

    assert widths(parallel=False) == {1}
    assert widths(parallel=True) == {1, 2, 3, 4}


def test_parallel_results_arrive_in_other_orders_than_they_were_asked():
    in_order = out_of_order = 0
    for conversation in generated(parallel=True):
        for at, message in enumerate(conversation):
            asked = [call["id"] for call in calls_of(message)]
            given = [m.get("tool_call_id") for m in conversation[at + 1 : at + 1 + len(asked)]]
            in_order += asked == given
            out_of_order += asked != given

    assert in_order
    assert out_of_order


@pytest.mark.parametrize("parallel", [False, True])
def test_messages_are_about_six_hundred_bytes_under_a_long_prompt(parallel: bool):
    conversations = generated(parallel)
    sizes = [len(corpus.compact_json(m)) for c in conversations for m in c]
    prompts = [len(str(c[0]["content"])) for c in conversations]

    assert 500 < sum(sizes) / len(sizes) < 700
    assert 6_000 < min(prompts) <= max(prompts) < 7_000


def test_some_argument_text_is_not_compact_and_all_of_it_is_an_object():
    texts = [
        call["function"]["arguments"]
        for conversation in generated(parallel=False)
        for message in conversation
        for call in calls_of(message)
    ]
    compact = [
        text for text in texts if text == json.dumps(json.loads(text), ensure_ascii=False, separators=(",", ":"))
    ]

    assert all(isinstance(json.loads(text), dict) for text in texts)
    assert 0.8 < len(compact) / len(texts) < 0.95


def test_conversations_are_made_when_asked_for():
    endless_supply = corpus.conversations(1, 10**12)

    assert next(endless_supply)[0]["role"] == "system"


def test_the_endless_corpus_has_both_kinds_of_calls_and_never_stops():
    widths = {len(calls_of(m)) for m in itertools.islice(corpus.endless(1), 2_000)}

    assert {0, 1, 2} <= widths


def test_recorded_conversations_are_read_as_they_were_written(tmp_path: Path):
    written = list(corpus.conversations(3, 4))
    path = tmp_path / "recorded.jsonl.gz"
    with gzip.open(path, "wt", encoding="utf-8") as out:
        for number, messages in enumerate(written):
            out.write(json.dumps({"id": f"c{number}", "messages": messages}) + "\n")

    assert list(corpus.read_recorded(path)) == written


def test_a_missing_recording_is_an_error(tmp_path: Path):
    with pytest.raises(FileNotFoundError):
        next(corpus.read_recorded(tmp_path / "nothing.jsonl.gz"))
