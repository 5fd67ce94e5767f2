"""The contract suite of stores: every promise of `limpet.stores.port`, tested on any backend.

To test a backend, subclass the suite in a test module of your own and run pytest:

    class TestMyStore(store_contract.StoreContract):
        def open_store(self, folder: Path) -> Store:     # same folder, same store
            return MyStore(folder / "state")

A store that keeps nothing between two openings sets `reopens = False`, which skips the tests that
need it. `walk` runs random steps on a store and on a plain model, for as long as you like.
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

from limpet.testing.store_contract.copy_contract import CopyContract  # noqa: E402
from limpet.testing.store_contract.durability_contract import DurabilityContract  # noqa: E402
from limpet.testing.store_contract.erasure_contract import ErasureContract  # noqa: E402
from limpet.testing.store_contract.log_contract import (
    AppendContract,  # noqa: E402 - rewritten asserts explain
    BlobContract,  # noqa: E402
    ConcurrencyContract,  # noqa: E402
)
from limpet.testing.store_contract.projection_contract import (
    NoteContract,  # noqa: E402
    ProjectionContract,  # noqa: E402
    RebuildContract,  # noqa: E402
)
from limpet.testing.store_contract.random_walk import walk  # noqa: E402
from limpet.testing.store_contract.stream_contract import (
    ForkContract,  # noqa: E402
    PipelineContract,  # noqa: E402
)


class StoreContract(
    AppendContract,
    PipelineContract,
    ForkContract,
    BlobContract,
    ProjectionContract,
    ErasureContract,
    DurabilityContract,
    NoteContract,
    RebuildContract,
    CopyContract,
    ConcurrencyContract,
):
    """Everything a store promises. Subclass it and say how your store is opened."""


__all__ = ["StoreContract", "walk"]
