"""The root of the command line: root commands, dispatch of arguments, and usage errors of the parser.

Also holds the formatters that wrap help texts to the width of the terminal. Imports cyclopts.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from cyclopts import App, CycloptsError, Parameter
from cyclopts.exceptions import UnusedCliTokensError
from cyclopts.help import DefaultFormatter, PlainFormatter

from limpet.cli import command_groups, exit_codes, hints
from limpet.cli.options import CommonOptions, Flag, OutputOptions, Positive

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions


_HANGING_INDENT: Final = "    "
"""What is under an option stands in by so much more."""


def unwrapped_paragraphs(text: str) -> list[str]:
    """Return the paragraphs of a text, each in one line."""
    return [" ".join(part.split()) for part in re.split(r"\n\s*\n", text.strip()) if part.strip()]


class PlainHelp(PlainFormatter):
    """For pipes."""

    def _print_plain(self, console: Console, text: str) -> None:
        first = text[: len(text) - len(text.lstrip(" "))]
        rest = first + _HANGING_INDENT if first else ""
        wrapped = [
            textwrap.fill(
                part, console.width, initial_indent=first, subsequent_indent=rest,
                break_long_words=False, break_on_hyphens=False,
            )
            for part in unwrapped_paragraphs(text)
        ]  # fmt: skip
        console.print("\n\n".join(wrapped), highlight=False, markup=False, soft_wrap=True)


class FramedHelp(DefaultFormatter):
    """For terminals."""

    def render_description(self, console: Console, options: ConsoleOptions, description: Any) -> None:
        """Render what a command does."""
        from rich.text import Text  # noqa: PLC0415 - only a terminal pays for rich

        written = getattr(description, "primary_renderable", description)
        if isinstance(written, Text):
            description = Text("\n\n".join(unwrapped_paragraphs(written.plain)) + "\n")
        super().render_description(console, options, description)


_COMMON = CommonOptions()
_PRINTING = OutputOptions()
NoVerify = Parameter(name="--no-verify", negative="", show_default=False)


def migrate(
    source: str, target: str, /, *, no_verify: Annotated[bool, NoVerify] = False, printing: OutputOptions = _PRINTING
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
    from limpet.cli.subcommands import store_commands  # noqa: PLC0415 - a command loads only what it needs

    return store_commands.migrate_store(source, target, printing, verify=not no_verify)


def restore(
    backup: str, target: str, /, *, no_verify: Annotated[bool, NoVerify] = False, printing: OutputOptions = _PRINTING
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
    from limpet.cli.subcommands import store_commands  # noqa: PLC0415 - as above

    return store_commands.restore_backup(backup, target, printing, verify=not no_verify)


def retention(
    *,
    keep: str,
    dry_run: Annotated[bool, Flag] = False,
    memory: Annotated[bool, Parameter(negative="--no-memory", show_default=False)] = True,
    yes: Annotated[bool, Flag] = False,
    common: CommonOptions = _COMMON,
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
    from limpet.cli.subcommands import store_commands  # noqa: PLC0415 - as above

    wanted = store_commands.RetentionCommandOptions(keep=keep, dry_run=dry_run, memory=memory, yes=yes)
    return store_commands.apply_retention(wanted, common)


app = App(
    name="limpet",
    help="Durable conversations for LLM agents.",
    version_flags=[],
    help_format="plaintext",
    help_formatter=FramedHelp() if sys.stdout.isatty() else PlainHelp(),
    result_action="return_value",
    suppress_keyboard_interrupt=False,
)
sessions = App(name="sessions", help="Look at sessions.")
app.command(sessions)
app.command(command_groups.frames)
app.command(command_groups.suspensions)
app.command(command_groups.events)
app.command(command_groups.memory)
for _command in (command_groups.search, command_groups.worker, command_groups.erase, migrate, restore, retention):
    app.command(_command)


def dispatch(arguments: Sequence[str]) -> int:
    """Run the command that the arguments name; return its exit code."""
    given = ["version"] if list(arguments) == ["--version"] else list(arguments)
    try:
        code = app(given, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        piped = given[:1] == ["import"] and "-" in given
        raise exit_codes.CommandFailure(
            _import_from_pipe_problem() if piped else _usage_problem(error, given)
        ) from error
    return code if isinstance(code, int) else exit_codes.DONE


def _usage_problem(error: CycloptsError, given: Sequence[str]) -> exit_codes.CommandProblem:
    chain = error.command_chain or ()
    words = " ".join((hints.program_name(), *chain))
    message = " ".join(str(error).split())
    if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
        told = f"{' '.join(error.unused_tokens)}: {words} takes no more arguments."
        named = "" if _takes_store_argument(chain) else _command_with_url(error.unused_tokens, given)
        then = f"If it names the store: {named}; else see: {words} --help" if named else f"See: {words} --help"
        return exit_codes.CommandProblem(exit_codes.USAGE, "usage", told, "Nothing was done.", then)
    return exit_codes.CommandProblem(exit_codes.USAGE, "usage", message, "Nothing was done.", f"See: {words} --help")


def _command_with_url(unused: Sequence[str], given: Sequence[str]) -> str:
    """Return the command as it was given, but with the word too many as its store; nothing if that can't be meant."""
    # One that comes twice may be the value of an option.
    if len(unused) != 1 or given.count(unused[0]) != 1:
        return ""
    if any(word.partition("=")[0] == "--url" for word in given):
        return ""
    rest = [word for word in given if word != unused[0]]
    at = rest.index("--") if "--" in rest else len(rest)
    return hints.command_line("", *rest[:at], *hints.option_words("--url", unused[0]), *rest[at:])


def _takes_store_argument(chain: Sequence[str]) -> bool:
    """Whether a command takes its store as an argument, so that one word more is no store."""
    from inspect import signature  # noqa: PLC0415 - only after a slip

    found = app
    for word in chain:
        found = found[word]
    command = found.default_command
    return command is not None and "store" in signature(command).parameters


def _import_from_pipe_problem() -> exit_codes.CommandProblem:
    told = "- is not a file on a disk, and an import reads more than once."
    then = "Save the pipe to a file first, and name that."
    return exit_codes.CommandProblem(exit_codes.USAGE, "usage", told, "Nothing was done.", then)


@app.command
def status(store: str | None = None, /, *, common: CommonOptions = _COMMON) -> int:
    """Show where the store is, how large, how durable, and what it holds.

    Example: limpet status state.db

    Parameters
    ----------
    store
        A path, files:folder, postgresql://… or redis://….
    """
    from limpet.cli.subcommands import store_commands  # noqa: PLC0415 - a command loads only what it needs

    return store_commands.show_status(store, common)


@app.command
def verify(store: str | None = None, /, *, common: CommonOptions = _COMMON) -> int:
    """Check every event, every page and the anchor against what was written. Changes nothing; exit 7 on damage.

    Example: limpet verify state.db

    Parameters
    ----------
    store
        A path, files:folder, postgresql://… or redis://….
    """
    from limpet.cli.subcommands import store_commands  # noqa: PLC0415

    return store_commands.verify_store(store, common)


@app.command
def rebuild(
    store: str | None = None,
    /,
    *,
    accept_loss: Annotated[bool, Flag] = False,
    give_up_copy: Annotated[bool, Flag] = False,
    common: CommonOptions = _COMMON,
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
    from limpet.cli.subcommands import store_commands  # noqa: PLC0415

    return store_commands.rebuild_store(store, common, accept_loss=accept_loss, give_up_copy=give_up_copy)


@app.command
def backup(target: str, /, *, common: CommonOptions = _COMMON) -> int:
    """Copy the store, consistent while others write, to a file that does not exist yet.

    Example: limpet backup monday.db --url state.db

    Parameters
    ----------
    target
        The new file. Nothing is ever overwritten.
    """
    from limpet.cli.subcommands import store_commands  # noqa: PLC0415

    return store_commands.backup_store(target, common)


@app.command
def export(
    session: str | None = None,
    /,
    *,
    output: Annotated[str, Parameter(name=["--output", "-o"], allow_leading_hyphen=True)],
    user: str | None = None,
    common: CommonOptions = _COMMON,
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
    from limpet.cli.subcommands import transfer_commands  # noqa: PLC0415

    return transfer_commands.export_sessions(session, user, output, common)


@app.command(name="import")
def import_(
    *files: str,
    format: Literal["auto", "limpet", "penguin", "openai"] = "auto",  # noqa: A002
    user: str | None = None,
    rename: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    dry_run: Annotated[bool, Flag] = False,
    common: CommonOptions = _COMMON,
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
    from limpet.cli.subcommands import transfer_commands  # noqa: PLC0415

    if not files:
        told = "no file was named."
        raise exit_codes.CommandFailure(
            exit_codes.CommandProblem(exit_codes.USAGE, "usage", told, "Nothing was done.", "limpet import --help")
        )
    wanted = transfer_commands.ImportCommandOptions(format, user, rename or "", dry_run)
    return transfer_commands.import_files(files, wanted, common)


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
    common: CommonOptions = _COMMON,
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
    from limpet.cli.subcommands import session_commands  # noqa: PLC0415

    wanted = session_commands.SessionListOptions(
        user=user, status=status, since=since, until=until, meta=meta, limit=limit, cursor=cursor
    )
    return session_commands.list_sessions(wanted, common)


@sessions.command
def show(
    session: str,
    /,
    *,
    limit: Positive | None = None,
    tail: Positive | None = None,
    raw: Annotated[bool, Flag] = False,
    force: Annotated[bool, Flag] = False,
    common: CommonOptions = _COMMON,
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
    from limpet.cli.subcommands import session_commands  # noqa: PLC0415

    part = session_commands.ShownMessageRange(limit=limit, tail=tail, raw=raw, force=force)
    return session_commands.show_session(session, part, common)


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
    provider: Annotated[Literal["openai", "responses", "anthropic", "gemini"] | None, Parameter(name="--as")] = None,
    at: Positive | None = None,
    diff: Annotated[tuple[Positive, Positive] | None, Parameter(negative_iterable="")] = None,
    recorded: Annotated[bool, Flag] = False,
    limit: Positive | None = None,
    before: Positive | None = None,
    common: CommonOptions = _COMMON,
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
    from limpet.cli.subcommands import context_command  # noqa: PLC0415

    wanted = context_command.ContextCommandOptions(
        budget=budget, model=model, counter=counter, why=why, what_if=what_if, provider=provider,
        at=at, diff=diff, recorded=recorded, limit=limit, before=before,
    )  # fmt: skip
    return context_command.show_context(session, wanted, common)


@app.command
def demo(*, keep: str | None = None, fast: Annotated[bool, Flag] = False, printing: OutputOptions = _PRINTING) -> int:
    """Watch an agent being killed in the middle of a tool call, and resumed. Offline; needs no key.

    Example: limpet demo --keep night

    Parameters
    ----------
    keep
        A new folder for the store and the agent's files; else they are removed at the end.
    fast
        Without pauses.
    """
    from limpet.cli.subcommands import demo_command  # noqa: PLC0415

    return demo_command.play_demo(keep=keep, fast=fast, printing=printing)


@app.command
def version(*, printing: OutputOptions = _PRINTING) -> int:
    """Show the versions of Limpet, Python and SQLite."""
    from limpet.cli.subcommands import store_commands  # noqa: PLC0415

    return store_commands.show_versions(printing)


@app.command(name="help")
def help_(*topic: str) -> int:
    """Show help on a command or a topic: exit-codes, environment, json, ids.

    Example: limpet help exit-codes
    """
    asked = " ".join(topic)
    if asked == "exit-codes":
        print(hints.exit_code_help())
    elif asked in hints.HELP_TOPICS:
        print(hints.HELP_TOPICS[asked])
    elif not topic:
        print(hints.FIRST_SCREEN)
    else:
        return dispatch([*topic, "--help"])
    return exit_codes.DONE
