"""What a note may be, on every backend."""

from __future__ import annotations

from limpet import errors, limits


def check_note(name: str, value: bytes | None = None) -> None:
    """Raise TooLarge for a note that is larger than its limits."""
    assert name, "a note has a name"
    if len(name.encode()) > limits.NOTE_NAME_BYTES_MAX:
        raise errors.TooLarge(
            f"a note's name has at most {limits.NOTE_NAME_BYTES_MAX:,} bytes.",
            facts={"bytes_max": limits.NOTE_NAME_BYTES_MAX},
        )
    if value is not None and len(value) > limits.NOTE_BYTES_MAX:
        raise errors.TooLarge(
            f"the note has {len(value):,} bytes; at most {limits.NOTE_BYTES_MAX:,} are kept.",
            hint="Keep what is large in the log or on the shelf.",
            facts={"bytes": len(value), "bytes_max": limits.NOTE_BYTES_MAX},
        )
