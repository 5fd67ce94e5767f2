"""The root of the command line: root commands, dispatch of arguments, and usage errors of the parser.

Also holds the formatters that wrap help texts to the width of the terminal. Imports cyclopts.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Literal

from cyclopts import App, CycloptsError, Parameter
from cyclopts.exceptions import UnusedCliTokensError

from limpet.cli import again, exits, flowing, helptexts
from limpet.cli.frames import program as frames
from limpet.cli.memory import program as memory
from limpet.cli.options import Common, Flag, Positive, Printing
from limpet.cli.upkeep import program as upkeep

app = App(
    name="limpet",
    help="Durable conversations for LLM agents.",
    version_flags=[],
    help_format="plaintext",
    help_formatter=flowing.Framed() if sys.stdout.isatty() else flowing.Plain(),
    result_action="return_value",
    suppress_keyboard_interrupt=False,
)
sessions = App(name="sessions", help="Look at sessions.")
app.command(sessions)
app.command(frames.frames)
app.command(frames.suspensions)
app.command(frames.events)
app.command(memory.memory)
for _command in (
    memory.search,
    memory.worker,
    memory.erase,
    upkeep.migrate,
    upkeep.restore,
    upkeep.retention,
):
    app.command(_command)

_COMMON = Common()
_PRINTING = Printing()


def dispatch(arguments: Sequence[str]) -> int:
    """Run the command that the arguments name; return its exit code."""
    given = ["version"] if list(arguments) == ["--version"] else list(arguments)
    try:
        code = app(given, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        piped = given[:1] == ["import"] and "-" in given
        raise exits.Failure(_no_pipe() if piped else _misuse(error, given)) from error
    return code if isinstance(code, int) else exits.DONE


def _misuse(error: CycloptsError, given: Sequence[str]) -> exits.Problem:
    chain = error.command_chain or ()
    words = " ".join((again.program(), *chain))
    message = " ".join(str(error).split())
    if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
        told = f"{' '.join(error.unused_tokens)}: {words} takes no more arguments."
        named = "" if _names_store(chain) else _named(error.unused_tokens, given)
        then = (
            f"If it names the store: {named}; else see: {words} --help"
            if named
            else f"See: {words} --help"
        )
        return exits.Problem(exits.USAGE, "usage", told, "Nothing was done.", then)
    return exits.Problem(exits.USAGE, "usage", message, "Nothing was done.", f"See: {words} --help")


def _named(unused: Sequence[str], given: Sequence[str]) -> str:
    """Return the command as it was given, but with the word too many as its store; nothing if that can't be meant."""
    # One that comes twice may be the value of an option.
    if len(unused) != 1 or given.count(unused[0]) != 1:
        return ""
    if any(word.partition("=")[0] == "--url" for word in given):
        return ""
    rest = [word for word in given if word != unused[0]]
    at = rest.index("--") if "--" in rest else len(rest)
    return again.command("", *rest[:at], *again.option("--url", unused[0]), *rest[at:])


def _names_store(chain: Sequence[str]) -> bool:
    """Whether a command takes its store as an argument, so that one word more is no store."""
    from inspect import signature  # noqa: PLC0415 - only after a slip

    found = app
    for word in chain:
        found = found[word]
    command = found.default_command
    return command is not None and "store" in signature(command).parameters


def _no_pipe() -> exits.Problem:
    told = "- is not a file on a disk, and an import reads more than once."
    then = "Save the pipe to a file first, and name that."
    return exits.Problem(exits.USAGE, "usage", told, "Nothing was done.", then)


@app.command
def status(store: str | None = None, /, *, common: Common = _COMMON) -> int:
    """Show where the store is, how large, how durable, and what it holds.

    Example: limpet status state.db

    Parameters
    ----------
    store
        A path, files:folder, postgresql://… or redis://….
    """
    from limpet.cli import status as command  # noqa: PLC0415 - a command loads only what it needs

    return command.run(store, common)


@app.command
def verify(store: str | None = None, /, *, common: Common = _COMMON) -> int:
    """Check every event, every page and the anchor against what was written. Changes nothing; exit 7 on damage.

    Example: limpet verify state.db

    Parameters
    ----------
    store
        A path, files:folder, postgresql://… or redis://….
    """
    from limpet.cli import verify as cli_verify  # noqa: PLC0415

    return cli_verify.run(store, common)


@app.command
def rebuild(
    store: str | None = None,
    /,
    *,
    accept_loss: Annotated[bool, Flag] = False,
    give_up_copy: Annotated[bool, Flag] = False,
    common: Common = _COMMON,
) -> int:
    """Drop all that is derived from the log and make it again, whole or not at all. Exit 7 if the log is damaged.

    Example: limpet rebuild state.db

    Parameters
    ----------
    store
        A path, files:folder, postgresql://… or redis://….
    accept_loss
        Of a folder whose journal lacks what was acknowledged: take the journal as it is. What only the index has is
        lost then.
    give_up_copy
        Open what has come of a copy into this store that nobody will go on with.
    """
    from limpet.cli import rebuild as cli_rebuild  # noqa: PLC0415

    return cli_rebuild.run(store, common, accept_loss=accept_loss, give_up_copy=give_up_copy)


@app.command
def backup(target: str, /, *, common: Common = _COMMON) -> int:
    """Copy the store, consistent while others write, to a file that does not exist yet.

    Example: limpet backup monday.db --url state.db

    Parameters
    ----------
    target
        The new file. Nothing is ever overwritten.
    """
    from limpet.cli import backup as cli_backup  # noqa: PLC0415

    return cli_backup.run(target, common)


@app.command
def export(
    session: str | None = None,
    /,
    *,
    output: Annotated[str, Parameter(name=["--output", "-o"], allow_leading_hyphen=True)],
    user: str | None = None,
    common: Common = _COMMON,
) -> int:
    """Write sessions to one file (JSON Lines), verbatim: a conversation, all of a user, or all.

    `limpet import` gives them back as they were: ids, times, tool calls, images, forks, summaries.

    Example: limpet export --user ada -o ada.jsonl

    Parameters
    ----------
    session
        Its id, the beginning of it, @last, or @last~2; with all that it is continued in.
    output
        The new file. Nothing is ever overwritten. - is stdout.
    user
        All sessions of this user.
    """
    from limpet.cli import exporting  # noqa: PLC0415

    return exporting.run(session, user, output, common)


@app.command(name="import")
def import_(
    *files: str,
    format: Literal["auto", "limpet", "penguin", "openai"] = "auto",  # noqa: A002
    user: str | None = None,
    rename: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    dry_run: Annotated[bool, Flag] = False,
    common: Common = _COMMON,
) -> int:
    """Take in sessions from files. What is here already stays as it is; broken off, repeat it.

    Files of `limpet export` are checked whole before anything is written. Also Penguin's session
    files, or folders of them, and OpenAI chats: JSON, or JSONL with a chat or a message a line.
    A store that is named and not there is created.

    Example: limpet import ada.jsonl --url state.db --dry-run

    Parameters
    ----------
    files
        The files, or folders of Penguin's.
    format
        What the files are.
    user
        Whose the sessions become; else as the file says.
    rename
        Put this behind each session's id, for example -copy.
    dry_run
        Only check, and say what would be done.
    """
    from limpet.cli import importing  # noqa: PLC0415

    if not files:
        told = "no file was named."
        raise exits.Failure(
            exits.Problem(exits.USAGE, "usage", told, "Nothing was done.", "limpet import --help")
        )
    wanted = importing.Wanted(format, user, rename or "", dry_run)
    return importing.run(files, wanted, common)


@sessions.command(name="list")
def list_(
    *,
    user: str | None = None,
    status: Literal["active", "ended"] | None = None,
    since: str | None = None,
    until: str | None = None,
    meta: Annotated[tuple[str, ...], Parameter(negative_iterable="", show_default=False)] = (),
    limit: Positive = 50,
    cursor: str | None = None,
    common: Common = _COMMON,
) -> int:
    """List sessions, last active first. Every condition given must hold.

    Example: limpet sessions list --user ada --since 2h --meta team=north

    Parameters
    ----------
    user
        Whose.
    status
        Active or ended.
    since
        Active at or after this moment: ISO 8601, or 30m, 2h, 3d, 1w back from now.
    until
        Active at or before this moment.
    meta
        key=value of the metadata; may be given several times.
    limit
        How many at most.
    cursor
        Go on where a page ended.
    """
    from limpet.cli import listing  # noqa: PLC0415

    wanted = listing.Filter(
        user=user, status=status, since=since, until=until, meta=meta, limit=limit, cursor=cursor
    )
    return listing.run(wanted, common)


@sessions.command
def show(
    session: str,
    /,
    *,
    limit: Positive | None = None,
    tail: Positive | None = None,
    raw: Annotated[bool, Flag] = False,
    force: Annotated[bool, Flag] = False,
    common: Common = _COMMON,
) -> int:
    """Show a session: its messages, tool calls that wait for a result, links to other sessions.

    Example: limpet sessions show @last --tail 20

    Parameters
    ----------
    session
        Its id, the beginning of it, @last, or @last~2.
    limit
        Only the first so many messages.
    tail
        Only the last so many messages.
    raw
        The bare text of the messages, nothing made harmless. Refuses a terminal.
    force
        Let --raw write to a terminal.
    """
    from limpet.cli import showing  # noqa: PLC0415

    part = showing.Part(limit=limit, tail=tail, raw=raw, force=force)
    return showing.run(session, part, common)


@app.command
def context(
    session: str,
    /,
    *,
    budget: Positive | None = None,
    model: str | None = None,
    counter: str | None = None,
    why: Positive | None = None,
    what_if: Positive | None = None,
    provider: Annotated[
        Literal["openai", "responses", "anthropic", "gemini"] | None, Parameter(name="--as")
    ] = None,
    at: Positive | None = None,
    diff: Annotated[tuple[Positive, Positive] | None, Parameter(negative_iterable="")] = None,
    recorded: Annotated[bool, Flag] = False,
    limit: Positive | None = None,
    before: Positive | None = None,
    common: Common = _COMMON,
) -> int:
    """Show what a model would see of a session within a token budget, what not, and why. Changes nothing.

    Or what one has seen: windows recorded with answers, rebuilt byte for byte, named by their events.
    Events are numbered from 1 in each session; a session's version is the number of its last.

    Example: limpet context @last --budget 8000

    Parameters
    ----------
    session
        Its id, the beginning of it, @last, or @last~2.
    budget
        Tokens that the window may have; else as the session's policy has it, or 8000.
    model
        Count as this model does, for example gpt-4o.
    counter
        Count with the counter of this name, for example estimate.
    why
        What became of the message with this number, and what it takes to have it in.
    what_if
        Compare with the window of another budget.
    provider
        The request that a provider takes, as JSON.
    at
        The window recorded with this event: its own number, or that of the answer after it.
    diff
        Compare the windows recorded with two events.
    recorded
        List the recorded windows, newest first.
    limit
        How many of them at most; 20 unless given.
    before
        Only those before this event.
    """
    from limpet.cli import context as cli_context  # noqa: PLC0415

    wanted = cli_context.Wanted(
        budget=budget, model=model, counter=counter, why=why, what_if=what_if, provider=provider,
        at=at, diff=diff, recorded=recorded, limit=limit, before=before,
    )  # fmt: skip
    return cli_context.run(session, wanted, common)


@app.command
def demo(
    *,
    keep: str | None = None,
    fast: Annotated[bool, Flag] = False,
    printing: Printing = _PRINTING,
) -> int:
    """Watch an agent being killed in the middle of a tool call, and resumed. Offline; needs no key.

    Example: limpet demo --keep night

    Parameters
    ----------
    keep
        A new folder for the store and the agent's files; else they are removed at the end.
    fast
        Without pauses.
    """
    from limpet.cli.demo import command as demo_command  # noqa: PLC0415

    return demo_command.run(keep=keep, fast=fast, printing=printing)


@app.command
def version(*, printing: Printing = _PRINTING) -> int:
    """Show the versions of Limpet, Python and SQLite."""
    from limpet.cli import version as cli_version  # noqa: PLC0415

    return cli_version.run(printing)


@app.command(name="help")
def help_(*topic: str) -> int:
    """Show help on a command or a topic: exit-codes, environment, json, ids.

    Example: limpet help exit-codes
    """
    asked = " ".join(topic)
    if asked == "exit-codes":
        print(helptexts.exit_codes())
    elif asked in helptexts.TOPICS:
        print(helptexts.TOPICS[asked])
    elif not topic:
        print(helptexts.ROOT)
    else:
        return dispatch([*topic, "--help"])
    return exits.DONE
