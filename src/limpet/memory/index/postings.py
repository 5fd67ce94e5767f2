"""The encoded rows of the archive index: posting lists, and blocks of documents.

A posting list has the numbers of the documents that contain a term, in two parts: documents with the term
once, and documents with it more than once. It stores the low 16 bits of the numbers, because no segment spans
a multiple of 65,536. A block has the positions, times, roles and sessions of consecutive documents, and the
distance to the document that each one answers. `DocumentBlock` is its mutable form, `DocumentBlockView` the
read-only form for searches.
"""

from __future__ import annotations

import bisect
import functools
import math
from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from operator import sub
from typing import Final

import msgspec

from limpet import errors
from limpet.core.values.messages import ROLES
from limpet.memory.index.terms import Term

ROW_BYTES: Final = 4_900
"""The target size of a row's value. With its key it fills one page of a file and part of a shared one."""

_ONCE_GAPS: Final = 1
_OFTEN_GAPS: Final = 2

PostingLists = tuple[Sequence[int], Sequence[int]]
"""Ascending numbers of the documents with a term once, and of those with it more often."""


def encode(once: Sequence[int], often: Sequence[int]) -> bytes:
    """Encode a posting list. A list of a single document takes two bytes."""
    if len(once) == 1 and not often:
        return once[0].to_bytes(2, "little")
    near_once, first = _encode_numbers(once)
    near_often, second = _encode_numbers(often)
    flags = (_ONCE_GAPS if near_once else 0) | (_OFTEN_GAPS if near_often else 0)
    return bytes((flags, *len(once).to_bytes(2, "little"))) + first + second


def _encode_numbers(numbers: Sequence[int]) -> tuple[bool, bytes]:
    """Return whether numbers are encoded as the first number and one-byte gaps, and the bytes."""
    if len(numbers) > 1:
        gaps = list(map(sub, numbers[1:], numbers))
        if max(gaps) < 256:
            return True, numbers[0].to_bytes(2, "little") + bytes(gaps)
    return False, array("H", numbers).tobytes()


def decode(data: bytes) -> PostingLists:
    """Decode a posting list."""
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
    """Return one list of several lists, whose documents follow one another."""
    once, often = list[int](), list[int]()
    for data in lists:
        first, second = decode(data)
        once += first
        often += second
    return encode(once, often)


def remove_numbers(data: bytes, gone: Collection[int]) -> bytes:
    """Return a list without some numbers; empty bytes if none is left."""
    once, often = decode(data)
    left = [n for n in once if n not in gone], [n for n in often if n not in gone]
    if len(left[0]) == len(once) and len(left[1]) == len(often):
        return data
    return encode(*left) if left[0] or left[1] else b""


def invert(documents: Iterable[tuple[int, Iterable[Term], Iterable[Term]]]) -> dict[Term, bytes]:
    """Return the posting lists of documents. A document is its number, its terms that occur once, and its other terms."""
    once, often = dict[Term, list[int]](), dict[Term, list[int]]()
    for number, single_terms, repeated_terms in documents:
        for terms, lists in ((single_terms, once), (repeated_terms, often)):
            for term in terms:
                numbers = lists.get(term)
                if numbers is None:
                    lists[term] = [number]
                else:
                    numbers.append(number)
    encoded = {term: encode(numbers, often.pop(term, ())) for term, numbers in once.items()}
    encoded.update((term, encode((), numbers)) for term, numbers in often.items())
    return encoded


def merge(parts: Iterable[Mapping[Term, bytes]]) -> dict[Term, bytes]:
    """Merge the posting lists of consecutive ranges of documents."""
    whole, shared = dict[Term, bytes](), dict[Term, list[bytes]]()
    for part in parts:
        for term in whole.keys() & part.keys():
            shared.setdefault(term, [whole[term]]).append(part[term])
        whole |= part
    for term, lists in shared.items():
        whole[term] = concatenate(lists)
    return whole


def pack_rows(lists: Mapping[Term, bytes]) -> Iterator[tuple[Term, bytes]]:
    """Yield rows of terms and their posting lists, in order of terms, each row with its first term."""
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
    """Return the posting list of a term in a row; None if the row lacks the term."""
    end = 2 + (row[0] | row[1] << 8)
    at = row.find(b"\n%b\n" % term, 2, end)
    if at < 0:
        return None
    sizes = _list_sizes(row, end, row.count(b"\n", 2, end) - 1)
    before = row.count(b"\n", 2, at)
    start = end + 2 * len(sizes) + sum(sizes[:before])
    return row[start : start + sizes[before]]


def unpack_row(row: bytes) -> dict[Term, bytes]:
    """Return all terms of a row with their posting lists."""
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


HIDDEN: Final = 0xFE
"""The kind of a document whose session was deleted. No search finds it, but posting lists still contain it."""

FORGOTTEN: Final = 0xFF
"""The kind of a document that was forgotten. Nothing else of it is stored."""

_LENGTH_CLASSES: Final = 62
_ANSWER_DISTANCE_MAX: Final = 0xFFFF


class SessionGeneration(msgspec.Struct, frozen=True, array_like=True):
    """A generation of a session. `began` is the ordinal before its first message."""

    session_id: str
    generation: int
    began: int


class NewDocument(msgspec.Struct, frozen=True):
    """A message to index: `once` has the terms that occur once in it, `often` the others."""

    position: int
    time_us: int
    generation: SessionGeneration
    role: str
    once: Sequence[Term]
    often: Sequence[Term]
    answers: int | None = None


class _DocumentRow(msgspec.Struct, array_like=True):
    position: int
    time_us: int
    positions: bytes
    times: bytes
    answers: bytes
    places: bytes
    kinds: bytes
    named: list[SessionGeneration]


class DocumentBlock:
    """A mutable block of consecutive documents of one owner."""

    def __init__(self) -> None:
        self.positions = array("q")
        self.times = array("q")
        self.answers = array("H")
        """The difference of a document's number to that of the document it answers; 0: it answers none."""
        self.generation_numbers = array("H")
        self.kinds = bytearray()
        self.generations: list[SessionGeneration] = []
        self._numbers: dict[SessionGeneration, int] = {}

    def __len__(self) -> int:
        return len(self.kinds)

    def add(self, entry: NewDocument, number: int) -> None:
        """Append a document, whose number is `number`."""
        distance = 0 if entry.answers is None else number - entry.answers
        length = len(entry.once) + 2 * len(entry.often)
        self.positions.append(entry.position)
        self.times.append(entry.time_us)
        self.answers.append(distance if 0 < distance <= _ANSWER_DISTANCE_MAX else 0)
        self.generation_numbers.append(self._generation_number(entry.generation))
        self.kinds.append(document_kind(entry.role, length))

    def set_generations(self, generations: list[SessionGeneration]) -> None:
        """Replace the generations; the numbers of the documents' generations are their indexes."""
        self.generations = generations
        self._numbers = {generation: number for number, generation in enumerate(generations)}

    def _generation_number(self, generation: SessionGeneration) -> int:
        number = self._numbers.setdefault(generation, len(self.generations))
        if number == len(self.generations):
            self.generations.append(generation)
        return number

    def extend(self, other: DocumentBlock) -> None:
        """Append the documents of the next block."""
        self._add_generation_numbers(other.generations, other.generation_numbers, other.kinds)
        self.positions += other.positions
        self.times += other.times
        self.answers += other.answers
        self.kinds += other.kinds

    def section(self, start: int, stop: int) -> DocumentBlock:
        """Return the documents from `start` to `stop` as a block."""
        if start == 0 and stop >= len(self):
            return self
        made = DocumentBlock()
        made.positions, made.times = self.positions[start:stop], self.times[start:stop]
        made.answers, made.kinds = self.answers[start:stop], self.kinds[start:stop]
        made._add_generation_numbers(self.generations, self.generation_numbers[start:stop], made.kinds)
        return made

    def _add_generation_numbers(
        self, generations: Sequence[SessionGeneration], numbers: Sequence[int], kinds: bytearray
    ) -> None:
        """Append the generations of another block's documents, which `numbers` index in `generations`."""
        self.generation_numbers.extend(
            0 if kind == FORGOTTEN else self._generation_number(generations[number])
            for number, kind in zip(numbers, kinds, strict=True)
        )

    def blank(self, indexes: Iterable[int]) -> None:
        """Overwrite everything that is known of some documents."""
        for at in indexes:
            self.positions[at] = self.times[at] = self.answers[at] = self.generation_numbers[at] = 0
            self.kinds[at] = FORGOTTEN
        whole, self.generations, self._numbers = self.generations, [], {}
        for at, kind in enumerate(self.kinds):
            if kind != FORGOTTEN:
                self.generation_numbers[at] = self._generation_number(whole[self.generation_numbers[at]])

    def encode(self) -> bytes:
        """Encode the block as the value of a row."""
        known = [at for at, kind in enumerate(self.kinds) if kind != FORGOTTEN]
        first = min((self.positions[at] for at in known), default=0)
        time_us = min((self.times[at] for at in known), default=0)
        return msgspec.msgpack.encode(
            _DocumentRow(
                first,
                time_us,
                array("I", (max(0, position - first) for position in self.positions)).tobytes(),
                array("Q", (max(0, time - time_us) for time in self.times)).tobytes(),
                self.answers.tobytes(),
                self.generation_numbers.tobytes(),
                bytes(self.kinds),
                self.generations,
            )
        )


_row_decoder: Final = msgspec.msgpack.Decoder(_DocumentRow)


class DocumentBlockView:
    """A read-only block. It decodes at once what a search needs of all documents, and the rest on request."""

    def __init__(self, row: bytes) -> None:
        self._stored = _decode_row(row)
        self.kinds = self._stored.kinds
        self.answers = array("H", self._stored.answers)
        self._offsets = array("I", self._stored.positions)

    def __len__(self) -> int:
        return len(self.kinds)

    def position(self, at: int) -> int:
        """Return the position of a document in the log."""
        return self._stored.position + self._offsets[at]

    def positions(self) -> list[int]:
        """Return the positions of all documents in the log."""
        return [self._stored.position + offset for offset in self._offsets]

    def time(self, at: int) -> int:
        """Return the time of a document."""
        return self._stored.time_us + memoryview(self._stored.times).cast("Q")[at]

    def generation(self, at: int) -> SessionGeneration:
        """Return the generation of a document."""
        return self._stored.named[memoryview(self._stored.places).cast("H")[at]]


def _decode_row(row: bytes) -> _DocumentRow:
    try:
        return _row_decoder.decode(row)
    except msgspec.MsgspecError as error:
        raise errors.Corrupt("a row of the archive can't be read.") from error


def decode_block(row: bytes) -> DocumentBlock:
    """Decode the value of a row; raise Corrupt if it is damaged."""
    stored = _decode_row(row)
    block = DocumentBlock()
    try:
        block.positions = array("q", [stored.position + offset for offset in array("I", stored.positions)])
        block.times = array("q", [stored.time_us + offset for offset in array("Q", stored.times)])
        block.answers, block.generation_numbers = array("H", stored.answers), array("H", stored.places)
    except (ValueError, OverflowError) as error:
        raise errors.Corrupt("a row of the archive can't be read.") from error
    block.kinds = bytearray(stored.kinds)
    block.set_generations(stored.named)
    return block


def document_kind(role: str, length: int) -> int:
    """Return the role and the class of length of a document as one byte."""
    step = min(_LENGTH_CLASSES - 1, int(8 * math.log2(1 + length / 4)))
    return ROLES.index(role) << 6 | step


def role_of_kind(kind: int) -> str:
    """Return the role in a kind."""
    return ROLES[kind >> 6]


@functools.cache
def length_of_kind(kind: int) -> float:
    """Return the approximate number of terms of a document, from its kind."""
    return 4 * (2 ** (((kind & 0x3F) + 0.5) / 8) - 1)
