"""Suggested commands, the first screen, and the topics of `limpet help`.

A suggested command is complete and quoted for a shell, and names the same store and tenant.
Imports neither cyclopts nor rich.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Final


def store_options(url: str | None, tenant: str) -> tuple[str, ...]:
    """Return the options that name a store and a tenant; the default tenant needs none."""
    named: list[str] = []
    if url:
        named += option_words("--url", url)
    if tenant != "default":
        named += option_words("--tenant", tenant)
    return tuple(named)


def option_words(name: str, value: object) -> tuple[str, ...]:
    """Return an option with its value: as name=value if the value looks like an option."""
    text = str(value)
    return (f"{name}={text}",) if text.startswith("-") else (name, text)


def given_options(given: Sequence[tuple[str, object]]) -> list[str]:
    """Return the options that have a value, as words of a command line."""
    return [word for name, value in given if value is not None for word in option_words(name, value)]


def command_line(words: str, *options: str, named: str = "", on: Sequence[str] = ()) -> str:
    """Return a command line to type: words, the argument `named`, options. Passwords in URLs are masked."""
    import shlex  # noqa: PLC0415 - the first screen does not need it

    from limpet.stores import urls  # noqa: PLC0415 - as above

    before, after = ([named], []) if not named.startswith("-") else ([], ["--", named])
    about = before if named else []
    whole = [program_name(), *words.split(), *about, *options, *on, *after]
    return shlex.join(urls.without_password(word) for word in whole)


def program_name() -> str:
    """Return `limpet` if that is on the PATH, else the path by which this process was started."""
    import shutil  # noqa: PLC0415 - slow to import, and the first screen does not need it

    if shutil.which("limpet") or not sys.argv[0].endswith("limpet"):
        return "limpet"
    return sys.argv[0]


FIRST_SCREEN: Final = """\
limpet: durable conversations for LLM agents. Start here: limpet demo
  demo         an agent is killed and resumed: offline, no key, about 20 seconds
  status       where the store is, its durability, what it holds  limpet status state.db
  sessions     list, show                                         limpet sessions show @last
  context      what a model sees of a session, and why            limpet context @last
  search       find messages of a user                            limpet search Oslo --user ada
  memory       profile, list, why, search, forget, queue          limpet memory profile ada
  worker       index, memory, summaries, time-outs, erasure       limpet worker --once
  frames       list, tree, show, pack, pending, resolve, cancel: units of work, their tokens
  suspensions  list, show, approve, edit, reject, revoke: requests that wait for a person
  events       tail: the log, a line for each event               limpet events tail --follow
  verify       check that the data is as it was written           limpet verify state.db
  backup       copy the store consistently, while others write    limpet backup monday.db
  restore      copy a backup into a new store, on any backend     limpet restore monday.db new.db
  migrate      copy a store to any backend, and verify the copy   limpet migrate state.db URL
  rebuild      rebuild the tables and indexes that are derived from the log
  export       write sessions to one file: a conversation, all of a user, or all
  import       read sessions from such a file, from OpenAI chats, from other programs
  retention    erase sessions that ended long ago                 limpet retention --keep 90d
  erase        erase a session, a message, or deleted sessions from every file
  version      versions of Limpet, Python and SQLite
  help         help on a command or a topic: exit-codes, environment, json, ids

Store: STORE, --url, LIMPET_URL or ./state.db. Read commands create none. All take --help, most --json."""

ENVIRONMENT_HELP: Final = """\
LIMPET_URL     the store, if neither STORE nor --url is given: a path or a URL
LIMPET_ASCII   set: symbols and tables in ASCII
LIMPET_DEBUG   set: an unexpected error prints its traceback
NO_COLOR       set: no colour
FORCE_COLOR    set: print to a pipe as to a terminal
TERM=dumb      no colour, no moving bars
COLUMNS        the width of tables"""

JSON_HELP: Final = """\
With --json a command prints one valid document on stdout: whole values, moments as ISO 8601 UTC,
everything that the table shows and more. Fields are added, never renamed or removed, within a
major version. An error leaves stdout empty and prints one line of problem+json on stderr: type,
title, detail, next, code, exit_code, facts. The answers of `verify` and `frames tree` are their
documents, damage included. `events tail` prints one object a line. No command asks for
confirmation: see --yes.

Without --json a pipe gets TSV without a header; control characters in stored text become symbols
(a newline is ␊). Its columns:
  sessions list   id, user, status, messages, tokens, open calls, last active, title
  sessions show   position, time, role, tokens, id, text
  context         first, last, fate, tokens, tokens used, category, rule
    --recorded    event, answer's number, messages, budget, tokens, level, hash, answer's id, time
    --diff        = - or +, first, last, messages, tokens, role, text
  frames list     id, actor, session, status, depth, total, used, reserved, lent, free, begun, goal
  frames tree     depth, id, parent, actor, status, total, used, own, used with descendants, reserved,
                  lent, free, overdrawn, goal
  frames pack     handle, how many, fate, tokens, tokens used, priority, rule
  frames pending  frame, type, reference, tool's status and effect, description
  frames resolve  how, frame, tool, its name, event
  frames cancel   "cancelled", frame
  suspensions list  id, status, frame, actor, session, purpose, since, expires, reason
    approve, edit, reject, revoke  decision, id, decided by, event, frame, frame's status
  events tail     position, time, kind, session or frame, details
  search          session, number, role, time, score, message's id, excerpt
  memory list     id, kind, about, since, until, session, message's id, text
    why           session, number, role, time, message's id, text
    search        kind, score, time, session, message's id, text
    queue         key, waiting or dead, session, generation, tries, next try, error
    profile       the text; forget and erase: name, value
  worker --once   steps, failures; --status: tenant, task, holder, failures, error, counters
  status          name, value; so do frames show and suspensions show
  verify          ok or damage, events, faults, store; then lines "fault" and "note"
  rebuild         events, rows, claims, store
  retention       gone, would go or stays; session, reason, session that is the reason
  backup          file, bytes
  migrate, restore  target, tenants, events, events copied by this run, newer events of the source
  export          file, sessions, events, messages, bytes
  import          file, format, sessions, messages, already there, skipped; then a line for each skipped
                  session and each note"""

IDS_HELP: Final = """\
A session is named by its id, by a unique prefix of its id, by @last (the session that was active
last), or by @last~2 (two sessions before that). Frames and suspensions are named in the same way;
their @last is the newest. A short id of a terminal works too: frm_…07ab, typed as frm_...07ab.
A fact is named by a unique prefix of its id, with or without fact_.
Messages are numbered from 1 as they are shown. Events are numbered from 1 in each session and
include its messages. A session's version is the number of its last event. The positions of
`events tail` count all events of a tenant."""


def exit_code_help() -> str:
    """Return the table of exit codes."""
    from limpet.cli import exit_codes  # noqa: PLC0415 - the first screen does not need it

    return "\n".join(f"{code:>3}  {meaning}" for code, meaning in exit_codes.EXIT_CODE_MEANINGS.items())


HELP_TOPICS: Final[Mapping[str, str]] = {"environment": ENVIRONMENT_HELP, "ids": IDS_HELP, "json": JSON_HELP}
"""Topics beside exit-codes, which is made from its table."""
