"""Public names of a package that are imported when they are first used."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence


def lazy_exports(
    package: str, names: Sequence[str], *modules: str
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a package whose public names are defined in `modules`.

    Importing them at once would make import cycles, and would load what few programs use. Modules are searched
    in the given order, so the light ones come first. A name that is itself one of `modules` is a submodule.
    """

    def get_attribute(name: str) -> object:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        for path in modules:
            module = importlib.import_module(path)
            value = module if path == f"{package}.{name}" else vars(module).get(name)
            if value is not None:
                setattr(sys.modules[package], name, value)
                return value
        raise AttributeError(f"no module of {package!r} defines {name!r}")

    def list_names() -> list[str]:
        own = [name for name in vars(sys.modules[package]) if name.startswith("__")]
        return sorted({*own, *names})

    return get_attribute, list_names
