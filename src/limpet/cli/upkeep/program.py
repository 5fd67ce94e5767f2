"""The commands about a store as a whole as cyclopts knows them. What they do is in their own modules."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from limpet.cli.options import Common, Flag, Printing

_COMMON = Common()
_PRINTING = Printing()
Unless = Parameter(name="--no-verify", negative="", show_default=False)


def migrate(
    source: str,
    target: str,
    /,
    *,
    no_verify: Annotated[bool, Unless] = False,
    printing: Printing = _PRINTING,
) -> int:
    """Copy a store with all its tenants into another, on any backend, and check the copy. Broken off, repeat it.

    The target is created if nothing is there; what it has must be a part of the same log. Others may
    write to the source meanwhile: exit 5 if it has more by the end, and then repeat it.

    Example: limpet migrate state.db postgresql://user@host/database

    Parameters
    ----------
    source
        The store to copy: a path or a URL.
    target
        The store to copy to: a path or a URL.
    no_verify
        Only compare the ends of the logs.
    """
    from limpet.cli.upkeep import moving  # noqa: PLC0415 - a command loads only what it needs

    return moving.migrate(source, target, printing, verify=not no_verify)


def restore(
    backup: str,
    target: str,
    /,
    *,
    no_verify: Annotated[bool, Unless] = False,
    printing: Printing = _PRINTING,
) -> int:
    """Put a backup into a store that is empty or not there yet, on any backend, and check it. Broken off, repeat it.

    Onto a file, what the list of erasures beside it names (TARGET-erased) is erased again. On a server
    or in a folder nothing is: erase there what was erased since the backup was made.

    Example: limpet restore monday.db state.db

    Parameters
    ----------
    backup
        What limpet backup made.
    target
        The new store: a path or a URL. Nothing is ever overwritten.
    no_verify
        Do not check what came.
    """
    from limpet.cli.upkeep import moving  # noqa: PLC0415 - as above

    return moving.restore(backup, target, printing, verify=not no_verify)


def retention(
    *,
    keep: str,
    dry_run: Annotated[bool, Flag] = False,
    memory: Annotated[bool, Parameter(negative="--no-memory", show_default=False)] = True,
    yes: Annotated[bool, Flag] = False,
    common: Common = _COMMON,
) -> int:
    """Let sessions go that ended long ago, out of every file, and say why the others stay. Asks first.

    One stays that long-term memory has not taken, that a frame is open about, or that a fork or a
    continuation needs which stays. What memory has learnt stays. A worker does it with --keep-ended.

    Example: limpet retention --keep 90d --dry-run

    Parameters
    ----------
    keep
        For how long after somebody was last active in them: 7d or more, for example 90d or 52w.
    dry_run
        Only say what would go, and why the rest stays.
    memory
        Only what long-term memory has taken, or what belongs to nobody, goes.
    yes
        Do not ask. A pipe and --json are never asked: without this they end with exit 2.
    """
    from limpet.cli.upkeep import keeping  # noqa: PLC0415 - as above

    wanted = keeping.Wanted(keep=keep, dry_run=dry_run, memory=memory, yes=yes)
    return keeping.run(wanted, common)
