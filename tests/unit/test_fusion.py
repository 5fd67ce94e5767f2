"""Rank fusion: nothing is lost or made up, what several ways find comes first, and the latest word before the old one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from limpet.memory.index import search
from limpet.memory.index.search import Ranking

POSITIONS = st.lists(st.integers(1, 60), unique=True, max_size=30)
RANKINGS = st.lists(POSITIONS.map(Ranking), max_size=4)
TEXTS = st.sampled_from(["a red boat", "the red boat sank", "rent is 900", "no", "", "房租是九百", "房租涨了"])


@given(RANKINGS)
def test_fusion_has_everything_once_and_is_always_the_same(rankings: list[Ranking]):
    found = search.fuse(rankings)
    assert sorted(found) == sorted({p for ranking in rankings for p in ranking.positions})
    assert search.fuse(rankings) == found


@given(POSITIONS)
def test_one_ranking_stays_as_it_is(positions: list[int]):
    assert search.fuse([Ranking(positions)]) == positions


@given(RANKINGS, st.data(), st.integers(1, 12))
def test_newest_first_is_a_permutation(rankings: list[Ranking], data: st.DataObject, limit: int):
    found = search.fuse(rankings)
    texts = {p: data.draw(TEXTS) for p in found[::2]}
    pairs = [(a, b) for a in found for b in found if a < b]
    likeness = {pair: data.draw(st.floats(-1, 1)) for pair in pairs[:20]}
    moved = search.newest_first(found, limit, texts, likeness)
    assert sorted(moved) == sorted(found)
    assert search.newest_first(found, limit, texts, likeness) == moved


@given(POSITIONS, st.integers(1, 10))
def test_what_has_nothing_in_common_stays_in_its_order(positions: list[int], limit: int):
    assert search.newest_first(positions, limit, {}, {}) == positions


def test_what_two_ways_find_comes_before_what_one_finds():
    assert search.fuse([Ranking([1, 2, 3]), Ranking([9, 3, 8])])[0] == 3


def test_of_equals_the_later_is_first():
    assert search.fuse([Ranking([4]), Ranking([7])]) == [7, 4]


def test_a_hit_with_all_of_the_words_outweighs_any_by_meaning():
    texts = ["ticket 0093-ELM is open", "the ticket", "a ticket for two"]
    trust = search.word_hit_trust("ticket 0093-ELM", texts)
    found = search.fuse([Ranking([50, 51, 52], trust), Ranking(list(range(1, 20)))])
    assert found[0] == 50


def test_a_hit_with_one_common_word_does_not():
    texts = [f"the number {n}" for n in range(10)]
    trust = search.word_hit_trust("the loyalty account that I use for flying", texts)
    found = search.fuse([Ranking(list(range(50, 60)), trust), Ranking(list(range(1, 11)))])
    assert found[:10] == list(range(1, 11))


def test_words_of_scripts_without_spaces_are_pairs_and_ideographs():
    assert search.words("舞蹈考级 QH7-4418") == {"舞蹈", "蹈考", "考级", *"舞蹈考级", "qh7-4418"}
    assert search.words("カ") == {"カ"}
    assert search.word_hit_trust("房租多少", ["房租", "押金"]) == [1.0, 1.0]
    assert not search.is_unspaced("Which ramen, 拉麺, did I like?")


def test_what_was_said_later_about_the_same_thing_is_first():
    texts = {
        3: "The landlord wants 1,340 euros from spring on.",
        5: "The dentist has squeezed me in on Tuesday.",
        8: "Talked the landlord down to 1,290 euros.",
    }
    meant = {(3, 8): 0.18, (3, 5): -0.3, (5, 8): -0.3}
    assert search.newest_first([5, 3, 8], 10, texts, meant) == [5, 8, 3]
    assert search.newest_first([8, 5, 3], 10, texts, meant) == [8, 5, 3]


def test_the_newest_of_three_is_first_and_none_is_lost():
    meant = {(1, 2): 0.6, (1, 3): 0.6, (2, 3): 0.6}
    assert search.newest_first([1, 2, 3], 10, {}, meant) == [3, 2, 1]


def test_one_from_behind_takes_a_place_only_if_it_is_very_like():
    order = [1, 2, 3, 4, 9]
    assert search.newest_first(order, 3, {}, {(1, 9): 0.5}) == [9, 1, 2, 3, 4]
    assert search.newest_first(order, 3, {}, {(1, 9): 0.3}) == order
    assert search.newest_first(order, 5, {}, {(1, 9): 0.3}) == [9, 1, 2, 3, 4]
