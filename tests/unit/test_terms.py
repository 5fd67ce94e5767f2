"""Text to terms: the same for a text and for whoever asks for it, in every script, bounded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet import Message, ToolCallRequest, ToolCallResult, limits
from limpet.memory.index import search, terms
from limpet.memory.index.terms import archive_text, has_words


def found(text: str) -> set[str]:
    return {term.decode() for term in terms.count_terms(text)}


def asked(text: str) -> list[str]:
    return [term.decode() for term in terms.query_terms(text)]


@pytest.mark.parametrize(
    ("text", "has"),
    [
        ("Which Seats?", {"which", "seat"}),
        ("QH7-4418", {"qh7-4418", "qh7", "4418"}),
        ("foo_bar.baz()", {"foo_bar.baz", "foo", "bar", "baz"}),
        ("mail ada@example.com now", {"ada@example.com", "ada", "exampl", "com"}),
        ("at 07:45 on 2031-05-17", {"07:45", "2031-05-17", "07", "45", "2031", "05", "17"}),
        ("parseHTTPConfig", {"parsehttpconfig", "pars", "http", "config"}),
        ("it's Anna's", {"it", "anna"}),
        ("ＡＢＣ１２３", {"abc123"}),
        ("Café Zoë", {"caf", "zoe"}),
        ("靠窗的座位", {"靠窗", "窗的", "的座", "座位", "位"}),
        ("猫", {"猫"}),
        ("ｶﾀｶﾅ", {"カタ", "タカ", "カナ", "カタカナ"}),
        ("東京tower2階", {"東京", "京", "tower2", "階"}),
        ("привет Мир", {"привет", "мир"}),
        ("हिन्दी", {"हिन्दी"}),
        ("“quoted”—and…so", {"quot", "and", "so"}),
        ("en\u00a0espace\u3000wide", {"en", "espac", "wid"}),
    ],
)
def test_terms(text: str, has: set[str]):
    assert has <= found(text)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("seat", "seats"),
        ("cancel", "cancelled"),
        ("plan", "planning"),
        ("make", "making"),
        ("carry", "carries"),
        ("carry", "carried"),
        ("box", "boxes"),
        ("call", "calling"),
        ("book", "booked"),
        ("class", "classes"),
    ],
)
def test_english_words_are_found_in_their_forms(one: str, other: str):
    assert asked(one) == asked(other)


@pytest.mark.parametrize("word", ["bus", "this", "bring", "red", "thing", "4418s", "a", "wings"])
def test_short_words_are_not_cut_to_nothing(word: str):
    assert all(len(term) >= min(3, len(word)) for term in asked(word))


def test_a_run_is_asked_for_in_pairs_and_one_character_as_a_beginning():
    assert asked("座位") == ["座位"]
    assert asked("猫") == ["猫"]
    assert terms.is_prefix("猫".encode())
    assert not terms.is_prefix("猫犬".encode()) and not terms.is_prefix(b"a")
    assert not terms.is_prefix("é".encode())


def test_encoded_data_is_no_word():
    data = "iVBORw0KGgoAAAANSUhEUgAA" * 400
    assert found(f"before {data} after") == {"befor", "after"}
    assert found("x" * 500) == set()


def test_counts_and_bounds():
    assert terms.count_terms("a b a")[b"a"] == 2
    many = " ".join(f"w{number}" for number in range(3 * limits.ARCHIVE_TERMS_MAX))
    assert len(terms.count_terms(many)) == limits.ARCHIVE_TERMS_MAX
    assert len(terms.query_terms(many)) == limits.ARCHIVE_QUERY_TERMS


@given(st.text())
def test_any_text_has_clean_bounded_terms(text: str):
    for term in terms.count_terms(text):
        assert term and not set(term) & set(b" \n\0")
        assert len(term.decode()) <= limits.ARCHIVE_WORD_CHARS


@given(st.text(), st.text(), st.text())
def test_whatever_is_asked_for_as_it_stands_is_found(before: str, text: str, after: str):
    whole = terms.count_terms(f"{before} {text} {after}")
    for term in terms.query_terms(text):
        if terms.is_prefix(term):
            assert any(one.startswith(term) for one in whole)
        else:
            assert term in whole


@given(st.text(alphabet="猫が東京アィー你好ครับ서울aB1 -_.", max_size=40))
def test_every_character_of_a_run_can_be_asked_for_alone(text: str):
    held = terms.count_terms(text)
    for char in text:
        one = terms.query_terms(char)
        if one and terms.is_prefix(one[0]):
            assert any(term.startswith(one[0]) for term in held)


@given(st.text(max_size=400), st.lists(st.text(min_size=1, max_size=12), max_size=4))
def test_a_passage_is_bounded_and_its_marks_lie_in_it(text: str, words: list[str]):
    weights = {term: 1.0 for word in words for term in terms.query_terms(word)}
    passage = search.best_passage(" ".join((text, *words)), weights)
    assert len(passage.excerpt) <= limits.EXCERPT_CHARS + 2
    last = 0
    for start, stop in passage.marks:
        assert last <= start < stop <= len(passage.excerpt)
        last = stop
    assert 0 <= passage.share <= 1.0001


def test_what_a_message_says():
    call = ToolCallRequest(id="c1", name="find_seat", args={"row": 4, "near": "window"})
    asking = Message(role="assistant", content="One moment.", tool_calls=[call])
    assert found(archive_text(asking)) >= {"moment", "find_seat", "row", "window"}
    result = ToolCallResult(tool_call_id="c1", result={"free": ["4A", "4F"]})
    assert found(archive_text(Message(role="tool", tool_results=[result]))) == {"fre", "4a", "4f"}
    parts = [
        {"type": "text", "text": "see"},
        {"type": "image", "source": {"type": "base64", "data": "AAAA", "media_type": "image/png"}},
    ]
    assert archive_text(Message(role="user", content=parts)) == "see"
    assert has_words(asking) and not has_words(Message(role="assistant", tool_calls=[call]))


def test_long_content_counts_by_its_beginning_and_its_end():
    text = archive_text(Message(role="user", content=f"first {'x ' * 80_000} last"))
    assert len(text) <= limits.ARCHIVE_CHARS_MAX + 1
    assert {"first", "last"} <= found(text)
    output = ToolCallResult(tool_call_id="c1", result=f"first {'x ' * 80_000} last")
    text = archive_text(Message(role="tool", tool_results=[output]))
    assert len(text) <= limits.ARCHIVE_TOOL_CHARS_MAX + 1
    assert {"first", "last"} <= found(text)


SCRIPTS = "漢字座位靠窗かなガカーヾ\u3099\u309aｶﾞ한글\u1112\u1161\u11abกำไทย\u1025\u102eမြန်\uf900\U0002f800\U00020000aAé7 、。-々〇"


def plainly(text: str, wanted: list[bytes]) -> list[tuple[int, int, bytes]]:
    """What `occurrences` finds in words of a script without spaces, looked for at every place."""
    made = list[tuple[int, int, bytes]]()
    for match in terms._patterns().span.finditer(text):
        word, start = match[0], match.start()
        if terms._patterns().unspaced.search(word):
            for at in range(len(word)):
                for pair in (word[at : at + 2], word[at]):
                    made += (
                        (start + at, start + at + len(pair), term)
                        for term in {*terms._terms(pair)} & {*wanted}
                        if not terms.is_prefix(term) or len(pair) == 1
                    )
    return sorted(made)


@given(st.text(SCRIPTS, max_size=40), st.text(SCRIPTS, max_size=8), st.integers(0, 39))
def test_what_is_passed_over_has_nothing_that_is_wanted(text: str, other: str, at: int):
    wanted = [
        term for term in dict.fromkeys([*terms._terms(text[at : at + 6]), *terms._terms(other)]) if not term.isascii()
    ]
    found = terms.occurrences(text, wanted)
    expected = plainly(text, wanted)
    words = [
        match.span() for match in terms._patterns().span.finditer(text) if terms._patterns().unspaced.search(match[0])
    ]
    assert [one for one in found if any(a <= one[0] < b for a, b in words)] == expected


def test_what_is_settled_is_folded_to_itself():
    settled = [chr(code) for code in range(0x40000) if terms._patterns().fold_stable.match(chr(code))]
    assert len(settled) > 100_000
    assert [one for one in settled if terms.fold(one) != one] == []
    assert [one for one in settled if not terms._patterns().unspaced.match(one)] == []
    assert terms.fold("".join(settled)) == "".join(settled), "beside one another too"


def test_a_long_text_without_spaces_is_not_taken_apart_at_every_place(monkeypatch: pytest.MonkeyPatch):
    text = "".join(chr(0x4E00 + number * 7919 % 20_000) for number in range(64_000))
    weights = dict.fromkeys(terms.query_terms(text[60_000:60_012]), 1.0)
    real, taken = terms._terms, list[str]()

    def counting(part: str) -> list[bytes]:
        taken.append(part)
        return real(part)

    monkeypatch.setattr(terms, "_terms", counting)
    assert search.best_passage(text, weights).share == 1.0
    assert len(taken) < 100
