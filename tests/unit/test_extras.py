"""What a store is opened with beside its sessions is the same for blocking and for async callers; and the extras of the package."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import msgspec
import pytest

import holdfast
from holdfast.cli import status
from holdfast.wiring.background import Extras


@pytest.mark.parametrize("opening", [holdfast.connect, holdfast.connect_async])
def test_every_extra_is_an_option_of_each_opening_with_the_same_default(
    opening: Callable[..., object],
):
    options = inspect.signature(opening).parameters
    for field in msgspec.structs.fields(Extras):
        assert options[field.name].default == field.default
        assert options[field.name].annotation == Extras.__annotations__[field.name]


@pytest.mark.parametrize("backend", status._LIBRARIES)
def test_a_backend_is_reached_with_what_its_extra_installs(backend: str):
    assert tuple(status._installed(backend)) == status._LIBRARIES[backend]


def test_extras_are_taken_from_among_the_options():
    options = {field.name: field.default for field in msgspec.structs.fields(Extras)}
    found = Extras.among({**options, "tenant": "acme", "worker": True, "idle_timeout_s": 5.0})
    assert found == Extras(worker=True, idle_timeout_s=5.0)
