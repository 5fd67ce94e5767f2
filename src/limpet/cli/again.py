"""Commands to type next: whole, quoted for a shell, on the store and tenant that were named."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def on(url: str | None, tenant: str) -> tuple[str, ...]:
    """Return the options that lead to the same store and tenant, as far as they were given."""
    named: list[str] = []
    if url:
        named += option("--url", url)
    if tenant != "default":
        named += option("--tenant", tenant)
    return tuple(named)


def option(name: str, value: object) -> tuple[str, ...]:
    """Return an option with its value; a value that looks like an option is tied to its name."""
    text = str(value)
    return (f"{name}={text}",) if text.startswith("-") else (name, text)


def command(words: str, *options: str, named: str = "", on: Sequence[str] = ()) -> str:
    """Return a command that can be typed as it is, but for a password: its words, what it is about, its options."""
    import shlex  # noqa: PLC0415 - the first screen does not need it

    from limpet.stores import urls  # noqa: PLC0415 - as above

    before, after = ([named], []) if not named.startswith("-") else ([], ["--", named])
    about = before if named else []
    whole = [program(), *words.split(), *about, *options, *on, *after]
    return shlex.join(urls.without_password(word) for word in whole)


def program() -> str:
    """Return how the command can be typed here: by its name where that is found, else as it was started."""
    import shutil  # noqa: PLC0415 - slow to import, and the first screen does not need it

    if shutil.which("limpet") or not sys.argv[0].endswith("limpet"):
        return "limpet"
    return sys.argv[0]
