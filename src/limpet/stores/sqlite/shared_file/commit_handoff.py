"""The commit hand-off: one process commits the appends of several.

A process that finds the lock taken writes its appends into its mailbox in the lock file. The holder commits them with
its own, writes the outcomes back and wakes the owner over a datagram socket. Nothing depends on it: a process that gets
the lock meanwhile withdraws its appends and commits them itself. Withdrawn appends may already have been collected, so
only repeatable ones are handed off. A mailbox belongs to the process that holds the lock on its byte of the file.
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
from limpet.stores.sqlite.shared_file.store_files import ProcessWriteLock, StoreFiles

LOCK_FILE_MAGIC: Final = b"LPTURNS1"
MAILBOXES: Final = 32
MAILBOX_BYTES: Final = 64 * 1024
OUTCOMES_BYTES: Final = 4 * 1024
"""The part of a mailbox that holds outcomes; the rest holds appends."""

ANSWER_WAIT_S, ANSWER_POLL_S = 40e-3, 1e-3
"""How long a process waits for the outcomes of its appends, and how often it looks without a wakeup."""

_FLAGS_OFFSET, _SOCKETS_OFFSET, _MAILBOXES_OFFSET = 64, 1024, 4096
_SOCKET_NAME_BYTES = 16
_APPEND_TYPES = (port.Append, port.StreamWrite, port.NewEvent, port.Projection, port.Snapshot, port.KeyUse)
_APPEND_LAYOUT = repr([(part.__name__, part.__struct_fields__) for part in _APPEND_TYPES])
"""The fields of an append in this version. Other versions write other layouts, and are ignored."""

_MESSAGE_STRUCT = struct.Struct(">8sIII")
"""The header of a message: the offer it belongs to, the layout, the size, the checksum."""

_MAILBOX_EMPTY, _MAILBOX_FULL = b"\0", b"\1"
_appends_decoder = msgspec.msgpack.Decoder(list[port.Append])
_outcomes_decoder = msgspec.msgpack.Decoder(list[tuple[int, int] | None])


class HandedOffAppends(msgspec.Struct, frozen=True):
    """Appends that another process put into its mailbox."""

    mailbox: int
    offer: bytes
    appends: list[port.Append]


def is_lock_file(beginning: bytes) -> bool:
    """Return whether a lock file can begin like this: with zeros, or with the magic of the mailboxes."""
    return not any(beginning[: len(LOCK_FILE_MAGIC)]) or beginning.startswith(LOCK_FILE_MAGIC)


class CommitHandoff:
    """The mailboxes of one store, as one process sees them. Used by one thread at a time."""

    def __init__(self, files: StoreFiles, process_lock: ProcessWriteLock, random: Callable[[int], bytes]) -> None:
        self._files = files
        self._process_lock = process_lock
        self._fd = process_lock.fd
        self._random = random
        self._held_lock_last = False
        self.layout = 0
        """The checksum of what `set_layout` has set; 0 before."""
        self._mailbox: int | None = None
        self._socket: socket.socket | None = None
        self._offer, self._written_bytes = b"", 0
        self._handed_off: list[tuple[str, str]] = []

    def set_layout(self, schema: int, database: tuple[int, int] | None, rebuilt: int = 0) -> None:
        """Set the schema, database and cache epoch that appends must be made for.

        Appends of other versions, for another file, or decided before a rebuild or an erasure are not collected.
        """
        self.layout = binascii.crc32(f"{_APPEND_LAYOUT} {schema} {database} {rebuilt}".encode())

    def clear_mailboxes(self) -> None:
        """Clear every mailbox. The caller holds the write lock; processes that wait for outcomes decide again."""
        size = self._files.size(self._fd)
        for mailbox in range(MAILBOXES):
            begin = _mailbox_offset(mailbox)
            used = min(MAILBOX_BYTES, size - begin)
            if used > 0:
                self._set_flag(mailbox, _MAILBOX_EMPTY)
                self._files.write(self._fd, bytes(used), begin)

    def hand_off(self, appends: Sequence[port.Append]) -> tuple[list[port.Appended | None] | None, bool]:
        """Return the outcomes of appends, None if there are none, and whether the process lock was acquired instead.

        Raises StoreBusy if a process collected them and has not answered within limits.WRITE_LOCK_WAIT_S.
        """
        until = time.monotonic() + ANSWER_WAIT_S
        try:
            if not self._write_offer(appends):
                return None, False
            if not self._held_lock_last:
                self._wait()
            while (outcomes := self._read_outcomes()) is None:
                if self._process_lock.try_acquire():
                    # No process commits them any more: outcomes that are missing now will never come.
                    outcomes = self._read_outcomes()
                    if outcomes is None:
                        self._held_lock_last = True
                        return None, True
                    self._process_lock.release()
                    break
                late_s = time.monotonic() - until
                if late_s > limits.WRITE_LOCK_WAIT_S:
                    raise self._no_answer_error()
                if late_s > 0 and self._is_uncollected():
                    return None, False
                self._wait()
        finally:
            self._withdraw_offer()
        self._held_lock_last = False
        return outcomes, False

    def _write_offer(self, appends: Sequence[port.Append]) -> bool:
        body = msgspec.msgpack.encode(appends)
        if len(body) > MAILBOX_BYTES - OUTCOMES_BYTES - _MESSAGE_STRUCT.size:
            return False
        try:
            box = self._own_mailbox()
            if box is None:
                return False
            self._offer, self._written_bytes = self._random(8), _MESSAGE_STRUCT.size + len(body)
            self._put(_mailbox_offset(box) + OUTCOMES_BYTES, self._offer, body)
            self._set_flag(box, _MAILBOX_FULL)
        except OSError:
            return False
        return True

    def _no_answer_error(self) -> errors.StoreBusy:
        holder = self._files.lock_holder(self._fd) or "unknown"
        return errors.StoreBusy(
            f"process {holder} has held the store, with commits to make for other processes, for more than "
            f"{limits.WRITE_LOCK_WAIT_S:g} s; whether it makes them is unknown.",
            hint="See whether it is stopped, and continue or end it; retry with the same message ids.",
            facts={"holder": holder, "timeout_s": limits.WRITE_LOCK_WAIT_S},
        )

    def _is_uncollected(self) -> bool:
        """Whether no process has collected the offer. Once one has, the outcome comes soon."""
        assert self._mailbox is not None, "an offer was written"
        return self._files.read(self._fd, 1, _FLAGS_OFFSET + self._mailbox) == _MAILBOX_FULL

    def _own_mailbox(self) -> int | None:
        if self._mailbox is None and self._bind_socket():
            box = next(filter(self._claim_mailbox, range(MAILBOXES)), None)
            if box is not None:
                assert self._socket is not None
                name: bytes = self._socket.getsockname()
                self._files.write(self._fd, LOCK_FILE_MAGIC, 0)
                at = _SOCKETS_OFFSET + box * _SOCKET_NAME_BYTES
                self._files.write(self._fd, bytes([len(name)]) + name, at)
                self._mailbox = box
        return self._mailbox

    def _claim_mailbox(self, box: int) -> bool:
        at = _FLAGS_OFFSET + box
        if self._files.is_byte_locked(self._fd, at):
            return False
        # Emptied before it is locked: an offer of the last owner must not count as one of this process.
        self._set_flag(box, _MAILBOX_EMPTY)
        return self._files.lock_byte(self._fd, at)

    def _bind_socket(self) -> bool:
        """Bind a socket in the abstract namespace; return False where the system has none."""
        if self._socket is None and sys.platform == "linux":
            made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                made.bind(b"\0hf" + self._random(6).hex().encode())
            except OSError:
                made.close()
            else:
                self._socket = made
        return self._socket is not None

    def _wait(self) -> None:
        assert self._socket is not None, "an offer was written"
        self._socket.settimeout(ANSWER_POLL_S)
        with contextlib.suppress(TimeoutError):
            self._socket.recv(1)

    def _read_outcomes(self) -> list[port.Appended | None] | None:
        assert self._mailbox is not None, "an offer was written"
        found = self._get(_mailbox_offset(self._mailbox), OUTCOMES_BYTES)
        if found is None or found[0] != self._offer:
            return None
        outcomes = _outcomes_decoder.decode(found[1])
        return [port.Appended(*each) if each is not None else None for each in outcomes]

    def _withdraw_offer(self) -> None:
        # Appends that were collected already take effect; their outcome is not read.
        if self._mailbox is not None:
            with contextlib.suppress(OSError):
                self._set_flag(self._mailbox, _MAILBOX_EMPTY)
                # Overwritten, because an erasure must not leave messages in the lock file.
                self._files.write(self._fd, bytes(self._written_bytes), _mailbox_offset(self._mailbox) + OUTCOMES_BYTES)

    def collect(self) -> list[HandedOffAppends]:
        """Return the appends of other processes. The caller holds the write lock."""
        batches: list[HandedOffAppends] = []
        try:
            flags = self._files.read(self._fd, MAILBOXES, _FLAGS_OFFSET)
            if _MAILBOX_FULL not in flags:
                return batches
            full = (at for at, flag in enumerate(flags) if flag and at != self._mailbox)
            batches += filter(None, map(self._collect_from, full))
        except OSError:
            pass
        for append in itertools.chain.from_iterable(batch.appends for batch in batches):
            self._handed_off += [(append.tenant, write.stream) for write in append.writes]
        return batches

    def _collect_from(self, box: int) -> HandedOffAppends | None:
        # Emptied before it is read: an offer that is written after this keeps its flag.
        self._set_flag(box, _MAILBOX_EMPTY)
        found = self._get(_mailbox_offset(box) + OUTCOMES_BYTES, MAILBOX_BYTES - OUTCOMES_BYTES)
        if found is None or not self._files.is_byte_locked(self._fd, _FLAGS_OFFSET + box):
            return None
        try:
            return HandedOffAppends(box, found[0], _appends_decoder.decode(found[1]))
        except msgspec.MsgspecError:
            return None

    def take_handed_off(self) -> list[tuple[str, str]]:
        streams, self._handed_off = self._handed_off, []
        return streams

    def answer(self, batches: Sequence[HandedOffAppends], outcomes: Sequence[port.AppendOutcome]) -> None:
        """Write the outcomes of each batch into its mailbox and wake its owner."""
        done = 0
        for batch in batches:
            self._answer_one(batch, outcomes[done : done + len(batch.appends)])
            done += len(batch.appends)

    def _answer_one(self, batch: HandedOffAppends, outcomes: Sequence[port.AppendOutcome]) -> None:
        positions = [(o.first, o.last) if isinstance(o, port.Appended) else None for o in outcomes]
        body = msgspec.msgpack.encode(positions)
        if len(body) <= OUTCOMES_BYTES - _MESSAGE_STRUCT.size:
            # A process without an answer withdraws its appends, finds them in the log and decides again.
            with contextlib.suppress(OSError):
                self._put(_mailbox_offset(batch.mailbox), batch.offer, body)
                self._wake_owner(batch.mailbox)

    def _wake_owner(self, box: int) -> None:
        name = self._files.read(self._fd, _SOCKET_NAME_BYTES, _SOCKETS_OFFSET + box * _SOCKET_NAME_BYTES)
        if name and self._bind_socket():
            assert self._socket is not None
            # An owner that does not get the datagram polls.
            with contextlib.suppress(OSError):
                self._socket.sendto(b"!", socket.MSG_DONTWAIT, name[1 : 1 + name[0]])

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()

    def _set_flag(self, box: int, flag: bytes) -> None:
        self._files.write(self._fd, flag, _FLAGS_OFFSET + box)

    def _put(self, at: int, offer: bytes, body: bytes) -> None:
        head = _MESSAGE_STRUCT.pack(offer, self.layout, len(body), binascii.crc32(offer + body))
        self._files.write(self._fd, head + body, at)

    def _get(self, at: int, room: int) -> tuple[bytes, bytes] | None:
        head = self._files.read(self._fd, _MESSAGE_STRUCT.size, at)
        if len(head) < _MESSAGE_STRUCT.size:
            return None
        offer, form, size, checksum = _MESSAGE_STRUCT.unpack(head)
        if form != self.layout or size > room - _MESSAGE_STRUCT.size:
            return None
        body = self._files.read(self._fd, size, at + _MESSAGE_STRUCT.size)
        return (offer, body) if binascii.crc32(offer + body) == checksum else None


def _mailbox_offset(box: int) -> int:
    return _MAILBOXES_OFFSET + box * MAILBOX_BYTES
