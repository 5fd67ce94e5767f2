"""Titles and metadata of sessions: what can be kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import msgspec

from limpet import errors, limits
from limpet.core.values.json_values import Json, checked_text, freeze
from limpet.core.values.session_state import DERIVED_METADATA


def checked_title(title: str | None) -> str | None:
    """Return the title; raise TooLarge past its limit."""
    if title is None:
        return None
    if not isinstance(cast("object", title), str):
        raise errors.InvalidRequest(f"a title is text, not {type(title).__name__}.")
    text = checked_text(title)
    size = len(text.encode())
    if size > limits.TITLE_BYTES_MAX:
        raise errors.TooLarge(
            f"the title has {size:,} bytes; at most {limits.TITLE_BYTES_MAX:,} are kept.",
            facts={"bytes": size, "bytes_max": limits.TITLE_BYTES_MAX},
        )
    return text


def checked_metadata(metadata: Mapping[str, Json]) -> Mapping[str, Json]:
    """Return frozen metadata; raise TooLarge past its limit, InvalidRequest for derived keys."""
    frozen = freeze(metadata)
    size = len(msgspec.json.encode(frozen))
    if size > limits.METADATA_BYTES_MAX:
        raise errors.TooLarge(
            f"the metadata has {size:,} bytes; at most {limits.METADATA_BYTES_MAX:,} are kept.",
            hint="Keep large values in a message, or outside.",
            facts={"bytes": size, "bytes_max": limits.METADATA_BYTES_MAX},
        )
    for name in DERIVED_METADATA:
        if name in frozen:
            raise errors.InvalidRequest(f"metadata {name!r} is derived by Limpet and can't be set.")
    return frozen
