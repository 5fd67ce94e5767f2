"""The size of an image and the length of a recording, read from their first bytes.

Pure and bounded: whatever the bytes are, the answer is a size or None.
"""

from __future__ import annotations

import struct
from typing import Final

from limpet import limits

Size = tuple[int, int]

_JPEG_FRAMES: Final = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})


def image_size(head: bytes) -> Size | None:
    """Return width and height of a PNG, JPEG, GIF or WebP image; None if the bytes do not tell."""
    try:
        size = _size(head)
    except (struct.error, IndexError):
        return None
    return size if size and min(size) > 0 and max(size) <= limits.IMAGE_SIDE_MAX else None


def _size(head: bytes) -> Size | None:
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return struct.unpack_from(">II", head, 16)
    if head.startswith((b"GIF87a", b"GIF89a")):
        return struct.unpack_from("<HH", head, 6)
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return _webp(head)
    if head.startswith(b"\xff\xd8"):
        return _jpeg(head)
    return None


def _webp(head: bytes) -> Size | None:
    match head[12:16]:
        case b"VP8 ":
            width, height = struct.unpack_from("<HH", head, 26)
            return width & 0x3FFF, height & 0x3FFF
        case b"VP8L":
            (bits,) = struct.unpack_from("<I", head, 21)
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8X":
            low, high, *rest = struct.unpack_from("<HBHB", head, 24)
            return (high << 16 | low) + 1, (rest[1] << 16 | rest[0]) + 1
        case _:
            return None


def _jpeg(head: bytes) -> Size | None:
    """Go from segment to segment until one begins a frame; each step is forward."""
    at = 2
    while at + 9 <= len(head):
        if head[at] != 0xFF:
            return None
        marker = head[at + 1]
        if marker in _JPEG_FRAMES:
            height, width = struct.unpack_from(">HH", head, at + 5)
            return width, height
        if marker == 0xFF:
            at += 1
        elif marker == 0x01 or 0xD0 <= marker <= 0xD7:
            at += 2
        else:
            (length,) = struct.unpack_from(">H", head, at + 2)
            at += 2 + max(2, length)
    return None


def wav_seconds(head: bytes, size: int) -> float | None:
    """Return the length of a WAV recording of so many bytes; None if it is none."""
    if len(head) < 36 or not head.startswith(b"RIFF") or head[8:16] != b"WAVEfmt ":
        return None
    (rate,) = struct.unpack_from("<I", head, 28)
    return size / rate if rate else None
