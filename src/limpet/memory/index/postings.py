"""Posting lists: which documents have a term, encoded in few bytes, and rows of many lists.

A list holds the low 16 bits of document numbers in two parts: documents with the term once, and
documents with it more than once. A row never spans a multiple of 65,536 documents.
"""

from __future__ import annotations

import bisect
from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from operator import sub
from typing import Final

from limpet.memory.index.terms import Term

ROW_BYTES: Final = 4_900
"""A row's value. With its key it fills one page of a file and the part of another that rows share."""

_ONCE_GAPS: Final = 1
_OFTEN_GAPS: Final = 2

PostingLists = tuple[Sequence[int], Sequence[int]]
"""Numbers of documents, rising: those with a term once, those with it more often."""


def encode(once: Sequence[int], often: Sequence[int]) -> bytes:
    """Return a list as bytes. A single document takes two."""
    if len(once) == 1 and not often:
        return once[0].to_bytes(2, "little")
    near_once, first = _encode_numbers(once)
    near_often, second = _encode_numbers(often)
    flags = (_ONCE_GAPS if near_once else 0) | (_OFTEN_GAPS if near_often else 0)
    return bytes((flags, *len(once).to_bytes(2, "little"))) + first + second


def _encode_numbers(numbers: Sequence[int]) -> tuple[bool, bytes]:
    """Return numbers as bytes, and whether they are the first and the gaps after it."""
    if len(numbers) > 1:
        gaps = list(map(sub, numbers[1:], numbers))
        if max(gaps) < 256:
            return True, numbers[0].to_bytes(2, "little") + bytes(gaps)
    return False, array("H", numbers).tobytes()


def decode(data: bytes) -> PostingLists:
    """Return a list from its bytes."""
    if len(data) == 2:
        return (data[0] | data[1] << 8,), ()
    flags, count = data[0], data[1] | data[2] << 8
    gaps = flags & _ONCE_GAPS
    end = 3 + (count + 1 if gaps else 2 * count)
    return _decode_numbers(data[3:end], gaps), _decode_numbers(data[end:], flags & _OFTEN_GAPS)


def _decode_numbers(data: bytes, gaps: int) -> Sequence[int]:
    if gaps:
        return list(accumulate(data[2:], initial=data[0] | data[1] << 8))
    numbers = array("H")
    numbers.frombytes(data)
    return numbers


def concatenate(lists: Iterable[bytes]) -> bytes:
    """Return one list from several, which follow one another."""
    once, often = list[int](), list[int]()
    for data in lists:
        first, second = decode(data)
        once += first
        often += second
    return encode(once, often)


def remove_numbers(data: bytes, gone: Collection[int]) -> bytes:
    """Return a list without some numbers; empty if none is left."""
    once, often = decode(data)
    left = [n for n in once if n not in gone], [n for n in often if n not in gone]
    if len(left[0]) == len(once) and len(left[1]) == len(often):
        return data
    return encode(*left) if left[0] or left[1] else b""


def invert(documents: Iterable[tuple[int, Iterable[Term], Iterable[Term]]]) -> dict[Term, bytes]:
    """Return the lists of documents, which come by number with their terms: those once in it, and those more often."""
    once, often = dict[Term, list[int]](), dict[Term, list[int]]()
    for number, singly, repeated in documents:
        for terms, lists in ((singly, once), (repeated, often)):
            for term in terms:
                numbers = lists.get(term)
                if numbers is None:
                    lists[term] = [number]
                else:
                    numbers.append(number)
    made = {term: encode(numbers, often.pop(term, ())) for term, numbers in once.items()}
    for term, numbers in often.items():
        made[term] = encode((), numbers)
    return made


def merge(parts: Iterable[Mapping[Term, bytes]]) -> dict[Term, bytes]:
    """Return the lists of several stretches of documents, which follow one another, as those of one."""
    whole, shared = dict[Term, bytes](), dict[Term, list[bytes]]()
    for part in parts:
        for term in whole.keys() & part.keys():
            shared.setdefault(term, [whole[term]]).append(part[term])
        whole |= part
    for term, lists in shared.items():
        whole[term] = concatenate(lists)
    return whole


def pack_rows(lists: Mapping[Term, bytes]) -> Iterator[tuple[Term, bytes]]:
    """Yield rows of terms with their lists, in order, each with its first term."""
    terms = sorted(lists)
    ends = list(accumulate(len(term) + len(lists[term]) + 3 for term in terms))
    start = 0
    while start < len(terms):
        room = ROW_BYTES + (ends[start - 1] if start else 0)
        stop = max(start + 1, bisect.bisect_right(ends, room))
        yield (terms[start], _pack_row(terms[start:stop], [lists[term] for term in terms[start:stop]]))
        start = stop


def _pack_row(terms: Sequence[Term], lists: Sequence[bytes]) -> bytes:
    names = b"\n%b\n" % b"\n".join(terms)
    sizes = array("H", map(len, lists)).tobytes()
    return b"".join((len(names).to_bytes(2, "little"), names, sizes, *lists))


def find_list(row: bytes, term: Term) -> bytes | None:
    """Return the list of a term from a row; None if it is not there."""
    end = 2 + (row[0] | row[1] << 8)
    at = row.find(b"\n%b\n" % term, 2, end)
    if at < 0:
        return None
    sizes = _list_sizes(row, end, row.count(b"\n", 2, end) - 1)
    before = row.count(b"\n", 2, at)
    start = end + 2 * len(sizes) + sum(sizes[:before])
    return row[start : start + sizes[before]]


def unpack_row(row: bytes) -> dict[Term, bytes]:
    """Return every term of a row with its list."""
    end = 2 + (row[0] | row[1] << 8)
    terms = row[3 : end - 1].split(b"\n")
    sizes = _list_sizes(row, end, len(terms))
    start = end + 2 * len(terms)
    cuts = list(accumulate(sizes, initial=start))
    return {term: row[first:last] for term, first, last in zip(terms, cuts, cuts[1:], strict=False)}


def _list_sizes(row: bytes, start: int, count: int) -> array[int]:
    sizes = array("H")
    sizes.frombytes(row[start : start + 2 * count])
    return sizes
