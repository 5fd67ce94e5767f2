"""Lists of documents and rows of lists come back as they were, joined and thinned as sets would be."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from limpet.memory.index import postings
from limpet.memory.index.postings import FORGOTTEN, DocumentBlock, NewDocument, SessionGeneration

numbers = st.sets(st.integers(0, 0xFFFF), max_size=60)
lists = st.tuples(numbers, numbers).map(lambda both: (both[0], both[1] - both[0]))
terms = st.binary(min_size=1, max_size=12).filter(lambda term: b"\n" not in term)


def encoded(once: set[int], often: set[int]) -> bytes:
    return postings.encode(sorted(once), sorted(often))


def decoded(data: bytes) -> tuple[set[int], set[int]]:
    once, often = postings.decode(data)
    assert list(once) == sorted(once) and list(often) == sorted(often)
    return set(once), set(often)


@given(lists)
def test_a_list_comes_back(both: tuple[set[int], set[int]]):
    assert decoded(encoded(*both)) == both


@given(st.integers(0, 300), st.integers(1, 300))
def test_a_dense_list_takes_a_byte_for_each(start: int, count: int):
    data = postings.encode(range(start, start + count), ())
    assert len(data) <= count + 4
    assert decoded(data) == (set(range(start, start + count)), set())


@given(lists, numbers)
def test_a_list_without_some(both: tuple[set[int], set[int]], gone: set[int]):
    if not both[0] and not both[1]:
        return
    left = postings.remove_numbers(encoded(*both), gone)
    wanted = both[0] - gone, both[1] - gone
    assert left == b"" if not any(wanted) else decoded(left) == wanted


@given(st.dictionaries(terms, st.binary(min_size=2, max_size=9000), max_size=30))
def test_rows_have_every_list_once_and_in_order(held: dict[bytes, bytes]):
    rows = list(postings.pack_rows(held))
    assert [first for first, _ in rows] == sorted(first for first, _ in rows)
    back: dict[bytes, bytes] = {}
    for first, row in rows:
        part = postings.unpack_row(row)
        assert min(part) == first and not part.keys() & back.keys()
        assert len(part) == 1 or len(row) <= postings.ROW_BYTES + 8
        back |= part
        for term, data in part.items():
            assert postings.find_list(row, term) == data
        assert postings.find_list(row, b"absent-term!") is None
    assert back == held


@given(st.lists(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(1, 2))), max_size=20))
def test_merging_is_what_inverting_all_at_once_gives(bags: list[list[tuple[str, int]]]):
    made = [
        (
            number,
            sorted({t.encode() for t, n in bag if n == 1} - {t.encode() for t, n in bag if n == 2}),
            sorted({t.encode() for t, n in bag if n == 2}),
        )
        for number, bag in enumerate(bags)
    ]
    parts = [postings.invert(made[at : at + 5]) for at in range(0, len(made), 5)]
    assert postings.merge(parts) == postings.invert(made)


def test_documents_come_back_and_forget_their_places():
    held = DocumentBlock()
    for at in range(5):
        place = SessionGeneration(f"session-{at % 2}", 0, 0)
        held.add(NewDocument(10 + at, 1_000 * at, place, "user", [b"x"] * at, [], at - 1 if at else None), at)  # fmt: skip
    back = postings.decode_block(held.encode())
    assert (list(back.positions), list(back.times)) == ([10, 11, 12, 13, 14], list(range(0, 5000, 1000)))  # fmt: skip
    assert list(back.answers) == [0, 1, 1, 1, 1]
    back.blank([0, 2, 4])
    row = back.encode()
    assert b"session-0" not in row and b"session-1" in row
    again = postings.decode_block(row)
    assert [kind == FORGOTTEN for kind in again.kinds] == [True, False, True, False, True]
    assert (again.positions[1], again.positions[3]) == (11, 13)
