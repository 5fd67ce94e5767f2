"""What all tests share, kept light. Fixtures of one kind of test live beside those tests."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import hypothesis
import pytest

ROOT = Path(__file__).resolve().parent.parent

# A failing build must fail again when it is repeated; searching for new examples is another run:
# HYPOTHESIS_PROFILE=explore.
hypothesis.settings.register_profile("ci", derandomize=True, deadline=None, database=None)
hypothesis.settings.register_profile("explore", deadline=None, max_examples=2_000, print_blob=True)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_configure() -> None:
    """Take interrupts again where a shell has them ignored, as for jobs in its background: children inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put what takes long first, so that at the end no worker waits for another's."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.fixture(scope="session")
def data_dir() -> Path | None:
    """The folder of recorded conversations, where there is one.

    It is not part of the repository: LIMPET_DATA names it, or it lies beside the checkout. A test
    uses the generated corpus always, and this in addition.
    """
    named = os.environ.get("LIMPET_DATA")
    folder = Path(named) if named else ROOT.parent / "shared" / "data"
    return folder if folder.is_dir() else None
