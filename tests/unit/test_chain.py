"""The bytes of header, digest and link are decided for good: these answers must never change."""

import hashlib

import msgspec
import pytest

from limpet import errors
from limpet.stores import chain
from limpet.stores.port import NewEvent, StoredEvent

PLAIN = NewEvent("session.created", 1, 1_700_000_000_000_000, b'{"id":"s1"}')
COUNTED = NewEvent("session.message_added", 2, -1, b"\x00\xff", 41, 7, "o200k")
SALT = bytes(range(16))
FIRST = chain.EventAddress(1, 1, 1)
LATER = chain.EventAddress(2**40, 300, 12)


def row(event: NewEvent, place: chain.EventAddress, before: bytes = chain.GENESIS_LINK) -> chain.EventRow:
    header = chain.encode_header(event, place)
    digest = chain.event_digest(SALT, header, event.payload)
    return chain.EventRow(place, header, event.payload, SALT, digest, chain.next_link(before, digest, header))


def erased(kept: chain.EventRow) -> chain.EventRow:
    return msgspec.structs.replace(kept, payload=None, salt=None)


def test_known_headers():
    assert chain.encode_header(PLAIN, FIRST) == (b'[1,"session.created",1,1700000000000000,1,1,1,0,null,null]')
    assert chain.encode_header(COUNTED, LATER) == (
        b'[1,"session.message_added",2,-1,1099511627776,300,12,41,7,"o200k"]'
    )


def test_known_digests_and_links():
    first = row(PLAIN, FIRST)
    second = row(COUNTED, LATER, first.link)
    assert first.digest.hex() == "a9fcc83739078630518b9ad0a07737663a2e0d254278a5480916c547f72d9ef7"
    assert first.link.hex() == "ff911408e9fca91e34a4d524ce58a9683767c6eaf8d9baf96a6c9e4fc697f6ec"
    assert second.digest.hex() == "665dd26c1dbfebe5232066bdbf7dbacea8dea99a3a604bd1bb0e74a0f95afbad"
    assert second.link.hex() == "0941a4cf894fe3f937b97f6b157168c2aecd12551b5672efc96dc245897531cd"


def test_the_formulas_are_those_of_the_module_docstring():
    header = b"header"
    length = b"\x00\x00\x00\x06"
    digest = hashlib.sha256(SALT + length + header + b"payload").digest()
    assert chain.event_digest(SALT, header, b"payload") == digest
    linked = hashlib.sha256(bytes(32) + digest + header).digest()
    assert chain.next_link(chain.GENESIS_LINK, digest, header) == linked


def test_the_border_between_header_and_payload_is_part_of_the_digest():
    assert chain.event_digest(SALT, b"ab", b"c") != chain.event_digest(SALT, b"a", b"bc")


def test_constants():
    constants = (chain.HEADER_FORMAT, chain.SALT_BYTES, chain.GENESIS_LINK)
    assert constants == (1, 16, bytes(32))


@pytest.mark.parametrize(("event", "place"), [(PLAIN, FIRST), (COUNTED, LATER)])
def test_a_row_opens_to_what_was_sealed(event: NewEvent, place: chain.EventAddress):
    kept = row(event, place)
    assert chain.decode_event(kept, "stream") == StoredEvent(
        place.position, "stream", place.version, event.kind, event.schema, event.time_us,
        event.ordinal, event.tokens, event.counter, event.payload, kept.link,
    )  # fmt: skip


@pytest.mark.parametrize("column", ["header", "payload", "salt", "digest"])
def test_every_flipped_bit_is_found_on_reading(column: str):
    kept = row(COUNTED, LATER)
    for flipped in flips(getattr(kept, column)):
        with pytest.raises(errors.Corrupt) as info:
            chain.decode_event(msgspec.structs.replace(kept, **{column: flipped}), "stream")
        assert info.value.facts == {"position": LATER.position, "version": LATER.version}


@pytest.mark.parametrize("column", ["header", "digest", "link"])
def test_every_flipped_bit_breaks_the_chain(column: str):
    kept = row(COUNTED, LATER, before=SALT * 2)
    assert chain.is_linked(kept, SALT * 2)
    for flipped in flips(getattr(kept, column)):
        assert not chain.is_linked(msgspec.structs.replace(kept, **{column: flipped}), SALT * 2)
    assert not any(chain.is_linked(kept, before) for before in flips(SALT * 2))


@pytest.mark.parametrize(
    "place",
    [chain.EventAddress(2, 1, 1), chain.EventAddress(1, 2, 1), chain.EventAddress(1, 1, 2)],
    ids=["position", "stream", "version"],
)
def test_a_row_in_another_place_is_found(place: chain.EventAddress):
    with pytest.raises(errors.Corrupt, match="not where it was written"):
        chain.decode_event(msgspec.structs.replace(row(PLAIN, FIRST), address=place), "stream")


def test_a_lost_salt_is_found():
    with pytest.raises(errors.Corrupt):
        chain.decode_event(msgspec.structs.replace(row(PLAIN, FIRST), salt=None), "stream")


def test_an_erased_payload_still_links():
    first = row(PLAIN, FIRST)
    second = row(COUNTED, LATER, first.link)
    assert chain.is_linked(erased(first), chain.GENESIS_LINK)
    assert chain.is_linked(second, erased(first).link)
    event = chain.decode_event(erased(first), "stream")
    assert (event.payload, event.kind) == (None, "session.created")


@pytest.mark.parametrize("header", [b"", b"[", b"[1]", b"\xff\xff", b'[1,"\xff",1,1,1,1,1,0,null,null]'])
def test_an_erased_row_with_an_unreadable_header_is_found(header: bytes):
    kept = msgspec.structs.replace(erased(row(PLAIN, FIRST)), header=header)
    with pytest.raises(errors.Corrupt, match="header"):
        chain.decode_event(kept, "stream")


def test_a_later_format_is_not_guessed_at():
    header = chain.encode_header(PLAIN, FIRST).replace(b"[1,", b"[2,", 1)
    digest = chain.event_digest(SALT, header, PLAIN.payload)
    kept = chain.EventRow(FIRST, header, PLAIN.payload, SALT, digest, bytes(32))
    with pytest.raises(errors.NewerStore):
        chain.decode_event(kept, "stream")


def flips(data: bytes) -> list[bytes]:
    """Return the data with each of its bits flipped in turn."""
    whole = int.from_bytes(data, "big")
    return [(whole ^ 1 << bit).to_bytes(len(data), "big") for bit in range(len(data) * 8)]
