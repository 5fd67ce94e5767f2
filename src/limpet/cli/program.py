"""The commands of `limpet`, the dispatch of arguments to them, and usage errors of the parser.

Also formats help texts to the width of the terminal. Imports cyclopts.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
import textwrap
from collections.abc import Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cyclopts import App, CycloptsError
from cyclopts.exceptions import UnusedCliTokensError
from cyclopts.help import DefaultFormatter, PlainFormatter

import limpet
from limpet.cli import exit_codes, hints
from limpet.cli.options import OutputOptions, Switch

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions


COMMANDS: Final[Mapping[str, str]] = {
    "status": "subcommands.store_commands:show_status",
    "verify": "subcommands.store_commands:verify_store",
    "rebuild": "subcommands.store_commands:rebuild_store",
    "retention": "subcommands.store_commands:apply_retention",
    "worker": "subcommands.store_commands:run_worker",
    "version": "subcommands.store_commands:show_versions",
    "backup": "subcommands.transfer_commands:backup_store",
    "restore": "subcommands.transfer_commands:restore_backup",
    "migrate": "subcommands.transfer_commands:migrate_store",
    "export": "subcommands.transfer_commands:export_sessions",
    "import": "subcommands.transfer_commands:import_files",
    "sessions list": "subcommands.session_commands:list_sessions",
    "sessions show": "subcommands.session_commands:show_session",
    "context": "subcommands.context_command:show_context",
    "search": "subcommands.memory_commands:search_archive",
    "memory profile": "subcommands.memory_commands:show_profile",
    "memory list": "subcommands.memory_commands:list_facts",
    "memory why": "subcommands.memory_commands:explain_fact",
    "memory search": "subcommands.memory_commands:search_memory",
    "memory forget": "subcommands.memory_commands:forget_user",
    "memory queue": "subcommands.memory_commands:show_queue",
    "erase": "subcommands.memory_commands:erase_stored",
    "frames list": "subcommands.frame_tree_commands:list_frames",
    "frames tree": "subcommands.frame_tree_commands:show_trees",
    "frames show": "subcommands.frame_detail_commands:show_frame",
    "frames pack": "subcommands.frame_detail_commands:show_pack",
    "frames pending": "subcommands.frame_detail_commands:show_pending_work",
    "frames resolve": "subcommands.suspension_commands:resolve_tool",
    "frames cancel": "subcommands.suspension_commands:cancel_frame",
    "suspensions list": "subcommands.suspension_commands:list_suspensions",
    "suspensions show": "subcommands.suspension_commands:show_suspension",
    "suspensions approve": "subcommands.suspension_commands:approve_suspension",
    "suspensions edit": "subcommands.suspension_commands:edit_suspension",
    "suspensions reject": "subcommands.suspension_commands:reject_suspension",
    "suspensions revoke": "subcommands.suspension_commands:revoke_suspension",
    "events tail": "subcommands.event_commands:tail_events",
    "demo": "program:play_demo",
    "help": "program:show_help",
}
"""Where each command is implemented, in `limpet.cli`. Imported when the command is run or its help is shown."""

_ALIASES: Final[Mapping[str, str | Sequence[str]]] = {
    "suspensions": ["suspensions", "approvals"], "suspensions reject": ["reject", "deny"]
}  # fmt: skip

_GROUPS: Final[Mapping[str, str]] = {
    "sessions": "Show sessions.",
    "frames": "Show frames (units of work) and their token accounts; resolve tools, cancel frames.",
    "suspensions": "Show and decide requests that wait for a person.",
    "events": "Show the event log.",
    "memory": "Show the long-term memory of a user: profile, facts, their sources; erase it.",
}


_HANGING_INDENT: Final = "    "
"""The extra indentation of the second and further lines of an option's help."""


def unwrapped_paragraphs(text: str) -> list[str]:
    """Return the paragraphs of a text, each joined to one line."""
    return [" ".join(part.split()) for part in re.split(r"\n\s*\n", text.strip()) if part.strip()]


class PlainHelp(PlainFormatter):
    """Formats help texts for pipes."""

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
    """Formats help texts for terminals."""

    def render_description(self, console: Console, options: ConsoleOptions, description: Any) -> None:
        """Render the description of a command."""
        from rich.text import Text  # noqa: PLC0415 - only a terminal pays for rich

        written = getattr(description, "primary_renderable", description)
        if isinstance(written, Text):
            description = Text("\n\n".join(unwrapped_paragraphs(written.plain)) + "\n")
        super().render_description(console, options, description)


def play_demo(*, keep: str | None = None, fast: Switch = False, printing: OutputOptions = OutputOptions()) -> int:
    """Watch an agent that is killed in the middle of a tool call and then resumed. Offline; needs no key.

    Example: limpet demo --keep night

    Args:
        keep: A new folder for the store and the agent's files. Without it they are removed at the end.
        fast: Without pauses.
    """
    # The demo is the package `demo` of the folder `examples`. A wheel carries it as `limpet/_examples/demo`.
    package = Path(limpet.__file__).parent
    folders = (package / "_examples", package.parents[1] / "examples")
    folder = next((str(one) for one in folders if (one / "demo" / "__init__.py").is_file()), None)
    if folder is None:
        why = f"There is no folder _examples in {package}, and this is no clone of the repository."
        then = "In a clone of Limpet: pip install '.[cli]'"
        raise exit_codes.failure(exit_codes.FAILED, "no_demo", "the demo is not installed.", why, then)
    sys.path.insert(0, folder)
    # The agent is a process of its own, and must find the same demo.
    others = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = folder + (os.pathsep + others if others else "")
    return importlib.import_module("demo.command").run(keep=keep, fast=fast, printing=printing)


def show_help(*topic: str) -> int:
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


def _make_app() -> App:
    made = App(
        name="limpet",
        help="Durable conversations for LLM agents.",
        version_flags=[],
        help_format="plaintext",
        help_formatter=FramedHelp() if sys.stdout.isatty() else PlainHelp(),
        result_action="return_value",
        suppress_keyboard_interrupt=False,
    )
    groups = {"": made}
    for name, text in _GROUPS.items():
        groups[name] = App(name=_ALIASES.get(name, name), help=text)
        made.command(groups[name])
    for words, path in COMMANDS.items():
        group, _, name = words.rpartition(" ")
        groups[group].command(f"limpet.cli.{path}", name=_ALIASES.get(words, name))
    return made


app = _make_app()


def dispatch(arguments: Sequence[str]) -> int:
    """Run the command that the arguments name; return its exit code."""
    given = ["version"] if list(arguments) == ["--version"] else list(arguments)
    try:
        if given[1:] in (["--help"], ["-h"]):
            # The help of a group has a line of each command, which is in the docstring of its function.
            for group in (app[word] for word in given[:1] if word in app):
                for name in group:
                    group[name]
        code = app(given, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        if given[:1] == ["import"] and "-" in given:
            told = "- is not a file on a disk, and an import reads its file more than once."
            raise exit_codes.usage_failure(told, "Save the pipe to a file and import that file.") from error
        raise _usage_failure(error, given) from error
    return code if isinstance(code, int) else exit_codes.DONE


def _usage_failure(error: CycloptsError, given: Sequence[str]) -> exit_codes.CommandFailure:
    chain = error.command_chain or ()
    words = " ".join((hints.program_name(), *chain))
    if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
        told = f"{' '.join(error.unused_tokens)}: {words} takes no more arguments."
        named = "" if _takes_store_argument(chain) else _command_with_url(error.unused_tokens, given)
        then = f"If it names the store: {named}; else see: {words} --help" if named else f"See: {words} --help"
        return exit_codes.usage_failure(told, then)
    return exit_codes.usage_failure(" ".join(str(error).split()), f"See: {words} --help")


def _command_with_url(unused: Sequence[str], given: Sequence[str]) -> str:
    """Return the command with its extra word as --url; empty if the extra word can't be a store."""
    # A word that occurs twice may be the value of an option.
    if len(unused) != 1 or given.count(unused[0]) != 1:
        return ""
    if any(word.partition("=")[0] == "--url" for word in given):
        return ""
    rest = [word for word in given if word != unused[0]]
    at = rest.index("--") if "--" in rest else len(rest)
    return hints.command_line("", *rest[:at], *hints.option_words("--url", unused[0]), *rest[at:])


def _takes_store_argument(chain: Sequence[str]) -> bool:
    """Whether a command has its store as an argument."""
    found = app
    for word in chain:
        found = found[word]
    command = found.default_command
    return command is not None and "store" in signature(command).parameters
