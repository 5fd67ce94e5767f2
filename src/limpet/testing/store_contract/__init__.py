"""The contract suite of stores: every promise of `limpet.stores.port`, tested on any backend.

To test a backend, subclass the suite in a test module of your own and run pytest:

    class TestMyStore(store_contract.StoreContract):
        def open_store(self, folder: Path) -> Store:     # same folder, same store
            return MyStore(folder / "state")

A store that keeps nothing between two openings sets `reopens = False`, which skips the tests that
need it. `walk` runs random steps on a store and on a plain model, for as long as you like.
"""

import pytest

for _name in ("durability_contract", "erasure_contract", "harness", "log_contract", "projection_contract"):
    pytest.register_assert_rewrite(f"{__name__}.{_name}")

# ruff: noqa: E402 - pytest rewrites the asserts of the modules that are imported below
from limpet.testing.store_contract.durability_contract import BlobContract, ConcurrencyContract, DurabilityContract
from limpet.testing.store_contract.erasure_contract import CopyContract, ErasureContract
from limpet.testing.store_contract.harness import walk
from limpet.testing.store_contract.log_contract import AppendContract, ForkContract, PipelineContract
from limpet.testing.store_contract.projection_contract import NoteContract, ProjectionContract, RebuildContract


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
