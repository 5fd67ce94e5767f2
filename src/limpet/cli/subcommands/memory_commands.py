"""`limpet search`, `limpet memory` and `limpet erase`.

Searches the archive, shows the facts known of a user with their sources, shows the ingest queue,
and erases.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from limpet import errors, limits
from limpet.cli import confirm, exit_codes, formatting, hints, output, target
from limpet.cli.options import CommonOptions
from limpet.cli.output import Output, OutputMode
from limpet.core.values import ids
from limpet.core.windows import summary

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from limpet.core.values.events import Receipt
    from limpet.core.values.memory_records import ArchivedMessage, Fact, Hit, MemoryResult
    from limpet.core.values.validation import Json
    from limpet.jobs.offload import QueuedOffload
    from limpet.sessions.manager import Session
    from limpet.wiring import Limpet


_MESSAGE_CHARS = 400


@dataclass(frozen=True, kw_only=True)
class SearchCommandOptions:
    """What to look for, whose, under which conditions, how many, and with how much around each."""

    query: str
    user: str
    role: str | None = None
    since: str | None = None
    until: str | None = None
    session: str | None = None
    around: int = 0
    limit: int = 10


def search_archive(wanted: SearchCommandOptions, common: CommonOptions) -> int:
    """Print hits."""
    surface = Output(as_json=common.json, quiet=common.quiet)
    since, until = (formatting.parse_moment("--since", wanted.since), formatting.parse_moment("--until", wanted.until))
    with target.open_store(common) as lp:
        session = target.find_session(lp, wanted.session).id if wanted.session else None
        found = lp.archive.search(
            wanted.query, user_id=wanted.user or None, limit=wanted.limit, role=wanted.role,
            since=since, until=until, session_id=session,
        )  # fmt: skip
        stranger = not found and not session and not lp.sessions.list_sessions(1, user_id=wanted.user or None)
        earlier = _positions_before_reset(lp, found) if surface.mode is OutputMode.TERMINAL else frozenset[int]()
        beside = {hit.position: messages_around(lp, hit, wanted.around) for hit in found}
    if surface.mode is OutputMode.JSON:
        hits = [_hit_document(hit, beside[hit.position]) for hit in found]
        surface.print_json({"hits": hits, "behind": found.behind})
    elif surface.mode is OutputMode.PIPE:
        for hit in found:
            surface.print_row(
                hit.session_id, hit.number, hit.role, ids.iso(hit.time_us), f"{hit.score:.3f}",
                hit.message_id, hit.excerpt,
            )  # fmt: skip
    else:
        for hit in found:
            _print_hit(surface, hit, beside[hit.position], earlier=hit.position in earlier)
    if not found and surface.mode is not OutputMode.JSON:
        surface.note(_nothing_found_text(wanted, common) if stranger else "Nothing was found.")
    if found.behind:
        surface.note(
            f"{formatting.quantity(found.behind, 'event')} not searched yet. A worker takes them in:"
            f" {hints.command_line('worker', '--once', on=hints.store_options(common.url, 'default'))}"
        )
    if found and not wanted.around:
        surface.note(f"To read around a hit: {_search_around_command(wanted, common)}")
    return exit_codes.DONE


def _nothing_found_text(wanted: SearchCommandOptions, common: CommonOptions) -> str:
    known = hints.command_line("sessions list", on=common.store_options)
    return f"Nothing was found: no session here is of {wanted.user!r}. Whose there are: {known}"


def messages_around(lp: Limpet, hit: Hit, count: int) -> Sequence[ArchivedMessage]:
    """Return what was said around a hit, itself included; nothing if nobody asked for it."""
    return lp.archive.open(hit, around=count) if count else ()


def message_document(one: ArchivedMessage) -> dict[str, Json]:
    """Return a message and its place as JSON."""
    return {
        "session": one.session_id,
        "number": one.number,
        "position": one.position,
        "time": ids.iso(one.time_us),
        "message": one.message.to_dict(),
    }


def _hit_document(hit: Hit, beside: Sequence[ArchivedMessage]) -> dict[str, Json]:
    data: dict[str, Json] = {
        "session": hit.session_id,
        "generation": hit.generation,
        "number": hit.number,
        "message": hit.message_id,
        "position": hit.position,
        "role": hit.role,
        "time": ids.iso(hit.time_us),
        "score": hit.score,
        "excerpt": hit.excerpt,
    }
    return {**data, "around": [message_document(one) for one in beside]} if beside else data


def _positions_before_reset(lp: Limpet, found: Sequence[Hit]) -> frozenset[int]:
    """Return the hits that were said before their session was reset: their numbers are not those it has now."""
    now: dict[str, int] = {}
    for hit in found:
        if hit.session_id not in now:
            with contextlib.suppress(errors.NotFound):
                now[hit.session_id] = lp.sessions.get_session(hit.session_id).state.generation
    return frozenset(hit.position for hit in found if hit.generation < now.get(hit.session_id, hit.generation))


def _print_hit(surface: Output, hit: Hit, beside: Sequence[ArchivedMessage], *, earlier: bool) -> None:
    from rich.text import Text  # noqa: PLC0415 - only a terminal pays for rich

    where = f"{hit.session_id} #{hit.number:,}" + (" before a reset" if earlier else "")
    when = formatting.relative_time(ids.iso(hit.time_us))
    head = Text.assemble((output.escape_line(where), "cyan"), f"  {hit.role}  ", (when, "dim"), no_wrap=True)
    surface.console.print(head, soft_wrap=True)
    if not beside:
        surface.console.print(Text(f"  {output.escape_line(hit.excerpt)}"))
    for one in beside:
        print_message(surface, one, here=one.position == hit.position)


def print_message(surface: Output, one: ArchivedMessage, *, here: bool) -> None:
    """Print one message of some that stand together; the one that is meant is marked."""
    from rich.text import Text  # noqa: PLC0415 - only a terminal pays for rich

    text = output.escape_line(summary.message_text(one.message))
    shown = text if len(text) <= _MESSAGE_CHARS else f"{text[:_MESSAGE_CHARS]}{surface.symbols.cut}"
    mark = surface.symbols.to if here else " "
    style = "bold" if here else "dim"
    surface.console.print(Text(f"  {mark} {one.number:>5,} {one.message.role:<9} {shown}", style=style))


def _search_around_command(wanted: SearchCommandOptions, common: CommonOptions) -> str:
    given = [
        ("--user", wanted.user), ("--role", wanted.role), ("--since", wanted.since),
        ("--until", wanted.until), ("--session", wanted.session), ("--around", 2),
    ]  # fmt: skip
    words = [word for name, value in given if value is not None for word in hints.option_words(name, value)]
    return hints.command_line("search", *words, named=wanted.query, on=common.store_options)


_FACT_ID_PREFIX = "fact_"
_SHORT_FACT_ID_CHARS = len(_FACT_ID_PREFIX) + 8


def show_profile(user: str, budget: int, common: CommonOptions) -> int:
    """Print what a new session would be told of a user."""
    surface = Output(as_json=common.json, quiet=common.quiet)
    with target.open_store(common) as lp:
        found = lp.memory.profile(user, budget)
        known = bool(found.facts or lp.memory.facts(user))
    if surface.mode is OutputMode.JSON:
        surface.print_json(
            {
                "user": user,
                "budget": budget,
                "tokens": found.tokens,
                "text": found.text,
                "facts": [_fact_document(fact) for fact in found.facts],
            }
        )
    elif found.text:
        print(output.escape_text(found.text))
        surface.note(
            f"{found.tokens:,} of {budget:,} tokens, {formatting.quantity(len(found.facts), 'fact')}."
            f" Each with its source: {hints.command_line('memory list', named=user, on=common.store_options)}"
        )
    elif known:
        surface.note(f"Nothing of what is known of {user!r} fits into {budget:,} tokens. Raise --budget.")
    else:
        _note_nothing_known(surface, user, common)
    return exit_codes.DONE


def list_facts(user: str, *, all_: bool, common: CommonOptions) -> int:
    """Print what is known of a user, the newest first."""
    surface = Output(as_json=common.json, quiet=common.quiet)
    with target.open_store(common) as lp:
        known = lp.memory.facts(user)
    found = [fact for fact in known if all_ or fact.until_us is None]
    if surface.mode is OutputMode.JSON:
        surface.print_json({"user": user, "facts": [_fact_document(fact) for fact in found]})
    elif surface.mode is OutputMode.PIPE:
        for fact in found:
            until = ids.iso(fact.until_us) if fact.until_us is not None else None
            surface.print_row(
                fact.id, fact.kind, fact.about, ids.iso(fact.since_us), until,
                fact.source.session_id, fact.source.message_id, fact.text,
            )  # fmt: skip
    elif found:
        _print_facts(surface, found)
        command = hints.command_line("memory why", _short_fact_id(found[0]), named=user, on=common.store_options)
        surface.note(f"Who said so: {command}")
    elif known:
        command = hints.command_line("memory list", "--all", named=user, on=common.store_options)
        surface.note(f"Nothing holds any more. What held once: {command}")
    else:
        _note_nothing_known(surface, user, common)
    return exit_codes.DONE


def _print_facts(surface: Output, found: list[Fact]) -> None:
    from rich.text import Text  # noqa: PLC0415 - only a terminal pays for rich

    rows = [
        [
            Text(_short_fact_id(fact), style="cyan"),
            Text(fact.kind),
            Text(formatting.relative_time(ids.iso(fact.since_us))),
            Text("now" if fact.until_us is None else f"until {ids.iso(fact.until_us)[:10]}"),
            Text(output.escape_line(fact.text), style="" if fact.until_us is None else "dim"),
        ]
        for fact in found
    ]
    surface.print_table(["ID", "KIND", "SAID", "HOLDS", "FACT"], rows)


def _short_fact_id(fact: Fact) -> str:
    return fact.id[:_SHORT_FACT_ID_CHARS]


def explain_fact(user: str, reference: str, around: int, common: CommonOptions) -> int:
    """Print the message that a fact comes from, and what was said around it."""
    surface = Output(as_json=common.json, quiet=common.quiet)
    with target.open_store(common) as lp:
        fact = _find_fact(lp, user, reference)
        source = fact.source
        beside = lp.archive.open((source.session_id, source.message_id), around=around)
    if surface.mode is OutputMode.JSON:
        surface.print_json({"fact": _fact_document(fact), "around": [message_document(one) for one in beside]})
    elif surface.mode is OutputMode.PIPE:
        for one in beside:
            surface.print_row(
                one.session_id, one.number, one.message.role, ids.iso(one.time_us), one.message.id,
                one.message.content if isinstance(one.message.content, str) else "",
            )  # fmt: skip
    else:
        surface.print_sentence(f"{fact.text}  ({fact.kind}, said {formatting.relative_time(ids.iso(fact.since_us))})")
        surface.print_sentence(source.session_id)
        for one in beside:
            print_message(surface, one, here=one.position == source.position)
    return exit_codes.DONE


def _find_fact(lp: Limpet, user: str, reference: str) -> Fact:
    known = list(lp.memory.facts(user))
    wanted = _FACT_ID_PREFIX + reference.removeprefix(_FACT_ID_PREFIX)
    found = [fact for fact in known if fact.id.startswith(wanted)]
    if len(found) == 1:
        return found[0]
    several = "is the beginning of more than one fact's id" if found else "names no fact"
    raise exit_codes.CommandFailure(
        exit_codes.CommandProblem(
            exit_codes.USAGE if found else exit_codes.NOT_FOUND,
            "ambiguous_id" if found else errors.NotFound.code,
            f"{reference!r} {several} of {user!r}.",
            f"It could be {', '.join(map(_short_fact_id, found[:3]))}{' and more' if len(found) > 3 else ''}."
            if found
            else f"Memory has {formatting.quantity(len(known), 'fact')} of this user, what held once included.",
            "Give more of the id, or list them:" if found else "",
            command=("memory list", "--all"),
            subject=user,
        )
    )


def search_memory(user: str, query: str, limit: int, common: CommonOptions) -> int:
    """Print what memory finds, facts and messages, the best first."""
    surface = Output(as_json=common.json, quiet=common.quiet)
    with target.open_store(common) as lp:
        found = list(lp.memory.search(user, query, limit))
    if surface.mode is OutputMode.JSON:
        surface.print_json({"user": user, "found": [_recalled_document(one) for one in found]})
    elif surface.mode is OutputMode.PIPE:
        for one in found:
            source = one.source
            surface.print_row(
                one.kind or "message", f"{one.score:.4f}", ids.iso(one.time_us),
                source.session_id if source else "", source.message_id if source else "", one.text,
            )  # fmt: skip
    else:
        for one in found:
            _print_recalled(surface, one)
    if not found and surface.mode is not OutputMode.JSON:
        surface.note("Nothing was found.")
    return exit_codes.DONE


def _print_recalled(surface: Output, one: MemoryResult) -> None:
    from rich.text import Text  # noqa: PLC0415 - only a terminal pays for rich

    place = output.escape_line(one.source.session_id) if one.source else ""
    when = formatting.relative_time(ids.iso(one.time_us))
    head = Text.assemble((place, "cyan"), f"  {one.kind or 'message'}  ", (when, "dim"))
    surface.console.print(head, soft_wrap=True)
    surface.console.print(Text(f"  {output.escape_line(one.text)}"))


def _note_nothing_known(surface: Output, user: str, common: CommonOptions) -> None:
    surface.note(
        f"Nothing is known of {user!r}. A worker learns from conversations that have ended:"
        f" {hints.command_line('worker', '--once', on=hints.store_options(common.url, 'default'))}"
    )


def _fact_document(fact: Fact) -> dict[str, Json]:
    return {
        "id": fact.id,
        "kind": str(fact.kind),
        "about": fact.about,
        "text": fact.text,
        "since": ids.iso(fact.since_us),
        "until": ids.iso(fact.until_us) if fact.until_us is not None else None,
        "session": fact.source.session_id,
        "message": fact.source.message_id,
        "position": fact.source.position,
    }


def _recalled_document(one: MemoryResult) -> dict[str, Json]:
    return {
        "kind": str(one.kind) if one.kind else "message",
        "text": one.text,
        "score": one.score,
        "time": ids.iso(one.time_us),
        "session": one.source.session_id if one.source else None,
        "message": one.source.message_id if one.source else None,
        "position": one.source.position if one.source else None,
    }


def show_queue(replay: str | None, common: CommonOptions) -> int:
    """Print what waits and what was given up, and how much no worker has read; with `replay` have it tried again first."""
    surface = Output(as_json=common.json, quiet=common.quiet)
    with target.open_store(common) as lp:
        replayed = None
        if replay is not None:
            replayed = lp.memory.replay(None if replay == "all" else replay)
            if not replayed and replay != "all":
                raise exit_codes.CommandFailure(_not_given_up_problem(replay))
        queue, behind = lp.memory.queue(), lp.memory.behind()
    if surface.mode is OutputMode.JSON:
        rows = [
            {**{name: getattr(one, name) for name in one.__struct_fields__ if name != "retry_us"},
             "retry_at": _next_try(one)} for one in queue
        ]  # fmt: skip
        surface.print_json({"queue": rows, "behind": behind, "replayed": replayed})
        return exit_codes.DONE
    if replayed is not None:
        surface.note(f"{formatting.quantity(replayed, 'conversation')} will be tried again.")
    if surface.mode is OutputMode.PIPE:
        for one in queue:
            state = "dead" if one.dead else "waiting"
            surface.print_row(one.key, state, one.session_id, one.generation, one.tries, _next_try(one), one.error)
    elif queue:
        _print_queue(surface, queue)
        if any(one.dead for one in queue):
            command = hints.command_line("memory queue", "--replay", "all", on=common.store_options)
            surface.note(f"To try again what was given up: {command}")
    if behind:
        surface.note(_unread_text(behind, common))
    elif not queue:
        surface.note("Nothing waits. Conversations come here when they end, and go when memory has them.")
    return exit_codes.DONE


def _unread_text(behind: int, common: CommonOptions) -> str:
    """Say that there may be more: nobody has looked yet for what ended."""
    wait = "waits" if behind == 1 else "wait"
    command = hints.command_line("worker", "--once", on=common.store_options)
    return (
        f"{formatting.quantity(behind, 'event')} of the log {wait} for a worker,"
        f" which finds the conversations that have ended: {command}"
    )


def _not_given_up_problem(key: str) -> exit_codes.CommandProblem:
    return exit_codes.CommandProblem(
        exit_codes.NOT_FOUND,
        errors.NotFound.code,
        f"{key!r} is no conversation that was given up.",
        "Each has its whole key in the list, in its first column.",
        "",
        command=("memory queue",),
    )


def _next_try(one: QueuedOffload) -> str | None:
    return ids.iso(one.retry_us) if one.retry_us else None


def _print_queue(surface: Output, queue: Sequence[QueuedOffload]) -> None:
    from rich.text import Text  # noqa: PLC0415 - only a terminal pays for rich

    rows = [
        [
            Text(output.escape_line(one.key), style="cyan"),
            Text("given up" if one.dead else "waiting", style="red" if one.dead else ""),
            Text(f"{one.tries}"),
            Text(_next_try(one) or ""),
            Text(one.error or ""),
        ]
        for one in queue
    ]
    surface.print_table(["KEY", "STATE", ">TRIES", "NEXT TRY", "ERROR"], rows)


_PREVIEW_CHARS = 200


def forget_user(user: str, *, yes: bool, common: CommonOptions) -> int:
    """Erase everything of a user, after a question that says how much that is."""
    surface = Output(as_json=common.json, quiet=common.quiet)
    with target.open_store(common, writes=True) as lp:
        sessions, messages = _session_and_message_count(lp, user)
        facts = len(lp.memory.facts(user))
        lines = [
            f"  {formatting.quantity(sessions, 'session')} with {formatting.quantity(messages, 'message')}",
            f"  {formatting.quantity(facts, 'fact')} that memory has",
            "  and what the search index, summaries, recorded windows and frames have of them",
        ]
        question = f"forget {user} in {target.store_name(common.url)}, for good?"
        confirm.require_confirmation(surface, question, lines, yes=yes)
        receipt = lp.memory.forget(user)
    _print_receipt(surface, receipt, f"forgot {user}", f"There was nothing of {user!r}.")
    return exit_codes.DONE


def _session_and_message_count(lp: Limpet, user: str) -> tuple[int, int]:
    sessions = messages = 0
    cursor: str | None = None
    while True:
        page = lp.sessions.list_sessions(limits.PAGE_SIZE_MAX, user_id=user, cursor=cursor)
        sessions += len(page)
        messages += sum(int(row["message_count"]) for row in page)
        cursor = page.next_cursor
        if cursor is None:
            return sessions, messages


def erase_stored(session: str | None, message: str | None, *, yes: bool, common: CommonOptions) -> int:
    """Erase a session, one message of it, or all that was deleted."""
    surface = Output(as_json=common.json, quiet=common.quiet)
    with target.open_store(common, writes=True) as lp:
        what, lines, run = _erasure_request(lp, session, message, yes=yes)
        question = f"erase {what} in {target.store_name(common.url)}, for good?"
        confirm.require_confirmation(surface, question, lines, yes=yes)
        receipt = run()
    _print_receipt(surface, receipt, f"erased {what}", "There was nothing to erase.")
    return exit_codes.DONE


def _erasure_request(
    lp: Limpet, session: str | None, message: str | None, *, yes: bool
) -> tuple[str, list[str], Callable[[], Receipt]]:
    """Return what is to go in words, what a person should see of it first, and what does it."""
    if session is None:
        if message is not None:
            raise exit_codes.CommandFailure(
                exit_codes.CommandProblem(
                    exit_codes.USAGE,
                    "usage",
                    "a message is one of a session.",
                    "Nothing was done.",
                    "Name the session first: limpet erase SESSION --message 12",
                )
            )
        return "what was deleted", [], lp.admin.erase
    found = (target.find_session_by_exact_id if yes else target.find_session)(lp, session)
    if message is None:
        held = formatting.quantity(found.message_count, "message")
        return f"{found.id} ({held})", [], lambda: lp.admin.erase(session_id=found.id)
    number = message.removeprefix("#")
    named, lines = message, list[str]()
    if number.isdecimal():
        at = int(number)
        if not 1 <= at <= found.message_count:
            raise exit_codes.CommandFailure(_unknown_message_problem(found, at))
        meant = found.messages[at - 1]
        named, lines = meant.id, [f"  {meant.role}: {summary.message_text(meant)[:_PREVIEW_CHARS]}"]

    def run() -> Receipt:
        return lp.admin.erase(session_id=found.id, message_id=named)

    return f"message {message} of {found.id}", lines, run


def _unknown_message_problem(session: Session, number: int) -> exit_codes.CommandProblem:
    return exit_codes.CommandProblem(
        exit_codes.NOT_FOUND,
        errors.MessageNotFound.code,
        f"{session.id} has no message #{number:,}.",
        f"It has {formatting.quantity(session.message_count, 'message')}, numbered from 1.",
        "",
        {"session": session.id},
        ("sessions show",),
        subject=session.id,
    )


def _print_receipt(surface: Output, receipt: Receipt, done: str, nothing: str) -> None:
    data = receipt.to_dict()
    if surface.mode is OutputMode.JSON:
        surface.print_json(data)
    elif surface.mode is OutputMode.PIPE:
        for name, value in data.items():
            surface.print_row(name, value)
    else:
        told = [
            formatting.quantity(getattr(receipt, name), noun)
            for name, noun in (("sessions", "session"), ("events", "event"), ("frames", "frame"), ("blobs", "blob"))
            if getattr(receipt, name)
        ]  # fmt: skip
        if receipt.rows:
            told.append(f"{formatting.quantity(receipt.rows, 'row')} of index and memory")
        numbers = f"{', '.join(told)}. Receipt {receipt.id}" if told else "there was nothing."
        surface.print_sentence(f"{surface.symbols.good} {done}: {numbers}")
    gone = receipt.sessions or receipt.events or receipt.frames or receipt.blobs or receipt.rows
    if surface.mode is not OutputMode.TERMINAL and not gone and not receipt.waiting:
        surface.note(nothing)
    if receipt.waiting:
        surface.note(
            f"{formatting.quantity(receipt.waiting, 'session')} hidden, to go with the last fork that reads from it."
        )
    if receipt.pending:
        surface.note("Somebody is reading; traces are left in files until the next erasure or opening.")
