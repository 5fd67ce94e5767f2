"""The contract suite: every promise of `limpet.stores.port`, proved on any backend.

To prove a backend, subclass the suite in a test module of your own and run pytest:

    class TestMyStore(contract.StoreContract):
        def open_store(self, folder: Path) -> Store:     # the same folder again: the same store
            return MyStore(folder / "state")

A store that keeps nothing between two openings sets `reopens = False`; the tests that need it are
then skipped. `walk` drives a store with random steps against a plain model, for as long as you like.
"""

import pytest

for _name in (
    "appending",
    "basing",
    "blobs",
    "company",
    "copying",
    "deriving",
    "erasing",
    "keeping",
    "noting",
    "rebuilding",
    "sending",
    "walking",
):
    pytest.register_assert_rewrite(f"{__name__}.{_name}")

from limpet.testing.contract.appending import Appending  # noqa: E402 - rewritten asserts explain
from limpet.testing.contract.basing import Basing  # noqa: E402
from limpet.testing.contract.blobs import Blobs  # noqa: E402
from limpet.testing.contract.company import Company  # noqa: E402
from limpet.testing.contract.copying import Copying  # noqa: E402
from limpet.testing.contract.deriving import Deriving  # noqa: E402
from limpet.testing.contract.erasing import Erasing  # noqa: E402
from limpet.testing.contract.keeping import Keeping  # noqa: E402
from limpet.testing.contract.noting import Noting  # noqa: E402
from limpet.testing.contract.rebuilding import Rebuilding  # noqa: E402
from limpet.testing.contract.sending import SendingAhead  # noqa: E402
from limpet.testing.contract.walking import walk  # noqa: E402


class StoreContract(
    Appending,
    SendingAhead,
    Basing,
    Blobs,
    Deriving,
    Erasing,
    Keeping,
    Noting,
    Rebuilding,
    Copying,
    Company,
):
    """Everything a store promises. Subclass it and say how your store is opened."""


__all__ = ["StoreContract", "walk"]
