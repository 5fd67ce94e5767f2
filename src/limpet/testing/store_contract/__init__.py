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
    "copy_contract",
    "durability_contract",
    "erasure_contract",
    "log_contract",
    "projection_contract",
    "random_walk",
    "stream_contract",
):
    pytest.register_assert_rewrite(f"{__name__}.{_name}")

# ruff: noqa: E402 - pytest rewrites the asserts of the modules that are imported below
from limpet.testing.store_contract.copy_contract import CopyContract
from limpet.testing.store_contract.durability_contract import DurabilityContract
from limpet.testing.store_contract.erasure_contract import ErasureContract
from limpet.testing.store_contract.log_contract import (
    AppendContract,
    BlobContract,
    ConcurrencyContract,
)
from limpet.testing.store_contract.projection_contract import (
    NoteContract,
    ProjectionContract,
    RebuildContract,
)
from limpet.testing.store_contract.random_walk import walk
from limpet.testing.store_contract.stream_contract import ForkContract, PipelineContract


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
