"""The types that public signatures name, and which of them can't be imported from a public place.

Annotations are texts, and many name types that are imported for type checkers only. So each name is looked up
among all imports of the module that has the annotation.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import sys
from collections.abc import Iterator
from types import ModuleType

import limpet

PACKAGES = ["limpet", *(f"limpet.{name}" for name in limpet._MODULES if hasattr(getattr(limpet, name), "__all__"))]

# Methods that Python calls, with values that callers see.
PROTOCOLS = {"__aenter__", "__aiter__", "__await__", "__call__", "__enter__", "__getitem__", "__iter__"}


def public_names() -> dict[str, object]:
    """Return every public name that is in an `__all__`, with its value."""
    modules = [importlib.import_module(package) for package in PACKAGES]
    return {f"{m.__name__}.{name}": getattr(m, name) for m in modules for name in m.__all__}


def unnamed_types() -> set[str]:
    """Return the types in signatures of public classes and functions that no public module has."""
    public = public_names()
    known = {id(value) for value in public.values()}
    missing: set[str] = set()
    for value in public.values():
        for module, annotation in signature_types(value):
            for name in type_names(annotation):
                origin = defined_in(module, name)
                if origin and id(origin[1]) not in known:
                    missing.add(origin[0])
    return missing


def signature_types(value: object) -> Iterator[tuple[ModuleType, str]]:
    """Yield the annotations of a public value, each with the module in which it is written."""
    if inspect.isfunction(value):
        module = sys.modules[value.__module__]
        yield from ((module, str(text)) for text in value.__annotations__.values())
    elif inspect.isclass(value) and not issubclass(value, BaseException):
        for base in value.__mro__:
            if base.__module__.startswith("limpet"):
                yield from own_signature_types(base)


def own_signature_types(kind: type) -> Iterator[tuple[ModuleType, str]]:
    fields = vars(kind).get("__annotations__", {})
    yield from ((sys.modules[kind.__module__], str(fields[f])) for f in fields if f[0] != "_")
    for name, member in vars(kind).items():
        if not name.startswith("_") or name in PROTOCOLS:
            yield from signature_types(plain_function(member))


def plain_function(member: object) -> object:
    """Return the function that a method, property or decorated function is made of."""
    if isinstance(member, classmethod | staticmethod):
        member = member.__func__
    elif isinstance(member, property):
        member = member.fget
    elif isinstance(member, functools.cached_property):
        member = member.func
    return inspect.unwrap(member) if callable(member) else member


def type_names(annotation: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(annotation, mode="eval")):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield f"{node.value.id}.{node.attr}"
        elif isinstance(node, ast.Name):
            yield node.id


@functools.cache
def imports(module: ModuleType) -> dict[str, tuple[str, str]]:
    """Return what each imported name of a module is: the module it is from, and its name there."""
    return {
        alias.asname or alias.name: (node.module, alias.name)
        for node in ast.walk(ast.parse(inspect.getsource(module)))
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }


def defined_in(module: ModuleType, name: str) -> tuple[str, object] | None:
    """Return the name and the value of a type of ours that a module uses, or None for another's."""
    head, _, rest = name.partition(".")
    origin, original = imports(module).get(head, (module.__name__, head))
    if not origin.startswith("limpet"):
        return None
    value = getattr(importlib.import_module(origin), original, None)
    if isinstance(value, ModuleType):
        return defined_in(value, rest) if rest and value.__name__.startswith("limpet") else None
    if value is None or type(value).__name__ in {"TypeVar", "ParamSpec"}:
        return None
    return original, value
