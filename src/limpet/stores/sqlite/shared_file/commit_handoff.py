"""The commit hand-off: one process commits the appends of several.

A process that finds the lock taken writes its appends into its mailbox in the lock file. The
holder commits them with its own, writes the outcomes back and wakes the owner over a datagram
socket. Nothing depends on it: a process that gets the lock meanwhile withdraws its appends and
commits them itself. Withdrawn appends may already have been collected, so only repeatable ones
are handed off. A mailbox belongs to the process that holds the lock on its byte of the file.
"""

from __future__ import annotations

import binascii
import contextlib
import itertools
import socket
import struct
import sys
import time
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from limpet import errors, limits
from limpet.stores import port
from limpet.stores.sqlite.shared_file.store_files import StoreFiles
from limpet.stores.sqlite.shared_file.write_lock import ProcessWriteLock

LOCK_FILE_MAGIC: Final = b"LPTURNS1"
MAILBOXES: Final = 32
MAILBOX_BYTES: Final = 64 * 1024
OUTCOMES_BYTES: Final = 4 * 1024
"""Of a box, what is kept for the outcomes; the rest is for appends."""

ANSWER_WAIT_S, ANSWER_POLL_S = 40e-3, 1e-3
"""How long a process waits to hear of what it handed over, and how soon it looks if nobody rings."""

_FLAGS_OFFSET, _SOCKETS_OFFSET, _MAILBOXES_OFFSET = 64, 1024, 4096
_SOCKET_NAME_BYTES = 16
_APPEND_TYPES = (
    port.Append,
    port.StreamWrite,
    port.NewEvent,
    port.Projection,
    port.Snapshot,
    port.KeyUse,
)
_APPEND_LAYOUT = repr([(part.__name__, part.__struct_fields__) for part in _APPEND_TYPES])
"""What an append is made of here."""

_MESSAGE_STRUCT = struct.Struct(">8sIII")
"""Before what lies in a box: which offer it belongs to, the form, the size, the checksum."""

_MAILBOX_EMPTY, _MAILBOX_FULL = b"\0", b"\1"
_appends_decoder = msgspec.msgpack.Decoder(list[port.Append])
_outcomes_decoder = msgspec.msgpack.Decoder(list[tuple[int, int] | None])


class HandedOffAppends(msgspec.Struct, frozen=True):
    """Appends found in a box."""

    box: int
    offer: bytes
    appends: list[port.Append]


def is_lock_file(beginning: bytes) -> bool:
    """Whether a lock file can begin like this: with nothing, or with the boxes' mark."""
    return not any(beginning[: len(LOCK_FILE_MAGIC)]) or beginning.startswith(LOCK_FILE_MAGIC)


class CommitHandoff:
    """The boxes of one store, as one process sees them. Used by one thread at a time."""

    def __init__(
        self, files: StoreFiles, turns: ProcessWriteLock, random: Callable[[int], bytes]
    ) -> None:
        self._files = files
        self._turns = turns
        self._fd = turns.fd
        self._random = random
        self._leads = False
        self._form = 0
        self._box: int | None = None
        self._bell: socket.socket | None = None
        self._offer, self._filled = b"", 0
        self._served: list[tuple[str, str]] = []

    def opened(self, schema: int, database: tuple[int, int] | None, rebuilt: int = 0) -> None:
        """From now on appends are of this schema and for this database: others' are left to them.

        So is what was decided before the store was last rebuilt, or something in it erased.
        """
        self._form = binascii.crc32(f"{_APPEND_LAYOUT} {schema} {database} {rebuilt}".encode())

    @property
    def ready(self) -> bool:
        """Whether it is known which appends are of one's own kind."""
        return self._form != 0

    def blank(self) -> None:
        """Leave nothing in any box. The caller holds the turn; who waits for an answer decides again."""
        size = self._files.size(self._fd)
        for box in range(MAILBOXES):
            begin, room = _mailbox_offset(box), min(MAILBOX_BYTES, size - _mailbox_offset(box))
            if room > 0:
                self._flag(box, _MAILBOX_EMPTY)
                self._files.write(self._fd, bytes(room), begin)

    def hand_over(
        self, appends: Sequence[port.Append]
    ) -> tuple[list[port.Appended | None] | None, bool]:
        """Return what became of the appends, None if nobody said, and whether the turn came instead."""
        until = time.monotonic() + ANSWER_WAIT_S
        try:
            if not self._offers(appends):
                return None, False
            if not self._leads:
                self._wait()
            while (outcomes := self._outcomes()) is None:
                if self._turns.try_take():
                    # Nobody is at it any more: what is not known by now never will be.
                    outcomes = self._outcomes()
                    if outcomes is None:
                        self._leads = True
                        return None, True
                    self._turns.give()
                    break
                late_s = time.monotonic() - until
                if late_s > limits.WRITE_LOCK_WAIT_S:
                    raise self._unheard()
                if late_s > 0 and self._lies_there():
                    return None, False
                self._wait()
        finally:
            self._take_back()
        self._leads = False
        return outcomes, False

    def _offers(self, appends: Sequence[port.Append]) -> bool:
        body = msgspec.msgpack.encode(appends)
        if len(body) > MAILBOX_BYTES - OUTCOMES_BYTES - _MESSAGE_STRUCT.size:
            return False
        try:
            box = self._own_box()
            if box is None:
                return False
            self._offer, self._filled = self._random(8), _MESSAGE_STRUCT.size + len(body)
            self._put(_mailbox_offset(box) + OUTCOMES_BYTES, self._offer, body)
            self._flag(box, _MAILBOX_FULL)
        except OSError:
            return False
        return True

    def _unheard(self) -> errors.StoreBusy:
        holder = self._files.holder(self._fd) or "unknown"
        return errors.StoreBusy(
            f"process {holder} has had the store, and messages to write for others, for more than "
            f"{limits.WRITE_LOCK_WAIT_S:g} s; whether it writes them is unknown.",
            hint="See whether it is stopped, and continue or end it; retry with the same message ids.",
            facts={"holder": holder, "timeout_s": limits.WRITE_LOCK_WAIT_S},
        )

    def _lies_there(self) -> bool:
        """Whether nobody has collected what was offered: once it is, its outcome is near."""
        assert self._box is not None, "who asks has offered something"
        return self._files.read(self._fd, 1, _FLAGS_OFFSET + self._box) == _MAILBOX_FULL

    def _own_box(self) -> int | None:
        if self._box is None and self._hangs_bell():
            box = next(filter(self._claims, range(MAILBOXES)), None)
            if box is not None:
                assert self._bell is not None
                name: bytes = self._bell.getsockname()
                self._files.write(self._fd, LOCK_FILE_MAGIC, 0)
                at = _SOCKETS_OFFSET + box * _SOCKET_NAME_BYTES
                self._files.write(self._fd, bytes([len(name)]) + name, at)
                self._box = box
        return self._box

    def _claims(self, box: int) -> bool:
        at = _FLAGS_OFFSET + box
        if self._files.claimed(self._fd, at):
            return False
        # Emptied first: what its last owner left there must not seem to be the next one's.
        self._flag(box, _MAILBOX_EMPTY)
        return self._files.claim(self._fd, at)

    def _hangs_bell(self) -> bool:
        """Have a socket under a name that is no file's; False where there is no such thing."""
        if self._bell is None and sys.platform == "linux":
            bell = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                bell.bind(b"\0hf" + self._random(6).hex().encode())
            except OSError:
                bell.close()
            else:
                self._bell = bell
        return self._bell is not None

    def _wait(self) -> None:
        """Wait until somebody rings, or for a while."""
        assert self._bell is not None, "who waits has offered something"
        self._bell.settimeout(ANSWER_POLL_S)
        with contextlib.suppress(TimeoutError):
            self._bell.recv(1)

    def _outcomes(self) -> list[port.Appended | None] | None:
        assert self._box is not None, "who asks has offered something"
        found = self._get(_mailbox_offset(self._box), OUTCOMES_BYTES)
        if found is None or found[0] != self._offer:
            return None
        told = _outcomes_decoder.decode(found[1])
        return [port.Appended(*each) if each is not None else None for each in told]

    def _take_back(self) -> None:
        # What was collected before takes effect all the same, unheard.
        if self._box is not None:
            with contextlib.suppress(OSError):
                self._flag(self._box, _MAILBOX_EMPTY)
                # Nobody looks for messages here who wants them deleted.
                self._files.write(
                    self._fd, bytes(self._filled), _mailbox_offset(self._box) + OUTCOMES_BYTES
                )

    def collect(self) -> list[HandedOffAppends]:
        """Take what others have put into their boxes. The caller holds the turn."""
        parcels: list[HandedOffAppends] = []
        try:
            flags = self._files.read(self._fd, MAILBOXES, _FLAGS_OFFSET)
            if _MAILBOX_FULL not in flags:
                return parcels
            full = (box for box, flag in enumerate(flags) if flag and box != self._box)
            parcels += filter(None, map(self._collected, full))
        except OSError:
            pass
        for append in itertools.chain.from_iterable(parcel.appends for parcel in parcels):
            self._served += [(append.tenant, write.stream) for write in append.writes]
        return parcels

    def _collected(self, box: int) -> HandedOffAppends | None:
        self._flag(box, _MAILBOX_EMPTY)
        found = self._get(_mailbox_offset(box) + OUTCOMES_BYTES, MAILBOX_BYTES - OUTCOMES_BYTES)
        if found is None or not self._files.claimed(self._fd, _FLAGS_OFFSET + box):
            return None
        try:
            return HandedOffAppends(box, found[0], _appends_decoder.decode(found[1]))
        except msgspec.MsgspecError:
            return None

    def served(self) -> list[tuple[str, str]]:
        """Return tenant and stream of what was collected since this was asked."""
        served, self._served = self._served, []
        return served

    def answer(
        self, parcels: Sequence[HandedOffAppends], outcomes: Sequence[port.AppendOutcome]
    ) -> None:
        """Put what became of each parcel's appends into its box, and ring."""
        done = 0
        for parcel in parcels:
            self._answer(parcel, outcomes[done : done + len(parcel.appends)])
            done += len(parcel.appends)

    def _answer(self, parcel: HandedOffAppends, outcomes: Sequence[port.AppendOutcome]) -> None:
        told = [(o.first, o.last) if isinstance(o, port.Appended) else None for o in outcomes]
        body = msgspec.msgpack.encode(told)
        if len(body) <= OUTCOMES_BYTES - _MESSAGE_STRUCT.size:
            # Who is not told takes its appends back; here they are in the log already.
            with contextlib.suppress(OSError):
                self._put(_mailbox_offset(parcel.box), parcel.offer, body)
                self._ring(parcel.box)

    def _ring(self, box: int) -> None:
        name = self._files.read(
            self._fd, _SOCKET_NAME_BYTES, _SOCKETS_OFFSET + box * _SOCKET_NAME_BYTES
        )
        if name and self._hangs_bell():
            assert self._bell is not None
            # Who can't be reached looks by itself before long.
            with contextlib.suppress(OSError):
                self._bell.sendto(b"!", socket.MSG_DONTWAIT, name[1 : 1 + name[0]])

    def close(self) -> None:
        """Take the bell down."""
        if self._bell is not None:
            self._bell.close()

    def _flag(self, box: int, flag: bytes) -> None:
        self._files.write(self._fd, flag, _FLAGS_OFFSET + box)

    def _put(self, at: int, offer: bytes, body: bytes) -> None:
        head = _MESSAGE_STRUCT.pack(offer, self._form, len(body), binascii.crc32(offer + body))
        self._files.write(self._fd, head + body, at)

    def _get(self, at: int, room: int) -> tuple[bytes, bytes] | None:
        head = self._files.read(self._fd, _MESSAGE_STRUCT.size, at)
        if len(head) < _MESSAGE_STRUCT.size:
            return None
        offer, form, size, checksum = _MESSAGE_STRUCT.unpack(head)
        if form != self._form or size > room - _MESSAGE_STRUCT.size:
            return None
        body = self._files.read(self._fd, size, at + _MESSAGE_STRUCT.size)
        return (offer, body) if binascii.crc32(offer + body) == checksum else None


def _mailbox_offset(box: int) -> int:
    return _MAILBOXES_OFFSET + box * MAILBOX_BYTES
