"""The figures of search by meaning, in small: the facts that come with the benchmark among generated conversations."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import recall
from tests import corpus


@pytest.mark.slow
def test_facts_are_found_again_by_meaning_and_the_newest_first(tmp_path: Path):
    facts = [fact for fact in recall.read_facts(recall.OWN) if fact.lang == "en"]
    result = recall.measure(tmp_path, list(corpus.conversations(7, 6)), facts)
    found = result.found["memory+: other"]
    assert found.share(facts) >= recall.ENGLISH_AT_LEAST
    assert found.newest_share(facts) >= recall.NEWEST_AT_LEAST
    assert result.found["memory+: own"].share(facts) >= recall.OWN_WORDS_AT_LEAST


def test_facts_are_well_formed():
    facts = {fact.id: fact for fact in recall.read_facts(recall.OWN)}
    for fact in facts.values():
        assert fact.answer in fact.said
        assert fact.own_words() and fact.answer not in fact.own_words()
        assert fact.replaces is None or facts[fact.replaces].lang == fact.lang
    assert {fact.lang for fact in facts.values()} == {"en", "ja", "zh"}


def test_conversations_keep_every_message_and_fact():
    facts = recall.read_facts(recall.OWN)
    conversations = list(corpus.conversations(7, 5))
    whole = [message for conversation in recall.spread(conversations, facts) for message in conversation]
    assert [m["content"] for m in whole if m["content"] in {fact.said for fact in facts}] == [
        fact.said for fact in facts
    ]
    assert len(whole) == len(facts) + sum(map(len, conversations))
