"""File names for ids that anybody may choose: none leads out of its folder, and no two ids have one."""

from __future__ import annotations

import hashlib
import re
from typing import Final

_SAFE: Final = re.compile(r"[a-z0-9][a-z0-9_.-]{0,99}")
_RESERVED: Final = frozenset(("index",))


def safe_name(text: str, apart: str = "") -> str:
    """Return a file name for any text: itself where that is plain, else what is plain of it, and a hash.

    `apart` keeps texts apart that are the same in different tenants. No two texts have one name, on no file system.
    """
    if not apart and _SAFE.fullmatch(text) and text not in _RESERVED and not text.endswith("."):
        return text
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower())[:40].strip("-")
    digest = hashlib.sha256(f"{apart}\0{text}".encode(errors="surrogatepass")).hexdigest()[:32]
    # An exclamation mark is in no plain name: nobody can choose an id that has another's file.
    return f"{plain}!{digest}"
