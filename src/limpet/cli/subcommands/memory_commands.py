"""`limpet search`, `limpet memory` and `limpet erase`: the message archive, the facts about a user, and erasure."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from limpet import errors, limits
from limpet.cli import exit_codes, hints, options, output, target
from limpet.cli.options import CommonOptions, Confirmed, Limit, NonNegative, Positive, Switch
from limpet.cli.output import Cell, Output, OutputMode
from limpet.core.values import ids
from limpet.core.windows import summary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from limpet.core.values.events import Receipt
    from limpet.core.values.memory_records import ArchivedMessage, Fact, Hit, MemoryResult
    from limpet.core.values.validation import Json
    from limpet.jobs.offload import QueuedOffload
    from limpet.sessions.manager import Session
    from limpet.wiring import Limpet


_MESSAGE_CHARS = 400


@dataclass(frozen=True, kw_only=True)
class SearchOptions(CommonOptions):
    """Which messages to search, how many hits to show, and how many messages around each."""

    user: str
    """The user whose conversations are searched; "" for those without a user."""
    role: Literal["user", "assistant", "tool", "system"] | None = None
    """Only messages of this role."""
    since: str | None = None
    """Only messages at or after this time: ISO 8601, or 30m, 2h, 3d, 1w before now."""
    until: str | None = None
    """Only messages at or before this time."""
    session: str | None = None
    """Only in this session: its id, a prefix of it, or @last."""
    around: NonNegative = 0
    """The number of messages to show before and after each hit."""
    limit: Limit = 10


def search_archive(query: str, /, *, wanted: SearchOptions) -> None:
    """Search all messages of a user, including summarised ones. The best match comes first.

    Example: limpet search "booking reference" --user ada --since 30d

    Args:
        query: Words in any language; names and numbers as in the messages.
    """
    surface = Output(wanted)
    since = None if wanted.since is None else options.parse_moment("--since", wanted.since)
    until = None if wanted.until is None else options.parse_moment("--until", wanted.until)
    with target.open_store(wanted) as lp:
        session = target.find_session(lp, wanted.session).id if wanted.session else None
        found = lp.archive.search(
            query, user_id=wanted.user or None, limit=wanted.limit, role=wanted.role,
            since=since, until=until, session_id=session,
        )  # fmt: skip
        stranger = not found and not session and not lp.sessions.list_sessions(1, user_id=wanted.user or None)
        earlier = _positions_before_reset(lp, found) if surface.mode is OutputMode.TERMINAL else frozenset[int]()
        beside = {hit.position: lp.archive.open(hit, around=wanted.around) if wanted.around else () for hit in found}
    document: Json = {"hits": [_hit_document(hit, beside[hit.position]) for hit in found], "behind": found.behind}
    if not surface.print_data(document, map(_hit_row, found)):
        for hit in found:
            _print_hit(surface, hit, beside[hit.position], earlier=hit.position in earlier)
    if not found and surface.mode is not OutputMode.JSON:
        known = hints.command_line("sessions list", on=wanted.store_options)
        whose = f"Nothing was found: the store has no session of {wanted.user!r}. To list all users' sessions: {known}"
        surface.note(whose if stranger else "Nothing was found.")
    if found.behind:
        events = output.quantity(found.behind, "event")
        surface.note(f"{events} not searched yet. A worker indexes them: {_worker_command(wanted)}")
    if found and not wanted.around:
        surface.note(f"To show the messages around each hit: {_search_around_command(query, wanted)}")


def _worker_command(common: CommonOptions) -> str:
    """Return the command that runs the background work of all tenants."""
    return hints.command_line("worker", "--once", on=hints.store_options(common.url, "default"))


def message_document(one: ArchivedMessage) -> dict[str, Json]:
    """Return a message and its position as JSON."""
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


def _hit_row(hit: Hit) -> tuple[object, ...]:
    time = ids.iso(hit.time_us)
    return (hit.session_id, hit.number, hit.role, time, f"{hit.score:.3f}", hit.message_id, hit.excerpt)


def _positions_before_reset(lp: Limpet, found: Sequence[Hit]) -> frozenset[int]:
    """Return the positions of hits from an earlier generation of their session, whose message numbers differ."""
    now: dict[str, int] = {}
    for hit in found:
        if hit.session_id not in now:
            with contextlib.suppress(errors.NotFound):
                now[hit.session_id] = lp.sessions.get_session(hit.session_id).state.generation
    return frozenset(hit.position for hit in found if hit.generation < now.get(hit.session_id, hit.generation))


def _print_hit(surface: Output, hit: Hit, beside: Sequence[ArchivedMessage], *, earlier: bool) -> None:
    where = f"{hit.session_id} #{hit.number:,}" + (" before a reset" if earlier else "")
    when = output.relative_time(ids.iso(hit.time_us))
    surface.print_head((where, "cyan"), f"  {hit.role}  ", (when, "dim"))
    if not beside:
        surface.print_block(output.escape_line(f"  {hit.excerpt}"))
    for one in beside:
        print_message(surface, one, here=one.position == hit.position)


def print_message(surface: Output, one: ArchivedMessage, *, here: bool) -> None:
    """Print a message, with a mark if it is the one that was asked for (`here`)."""
    text = output.escape_line(summary.message_text(one.message))
    shown = text if len(text) <= _MESSAGE_CHARS else f"{text[:_MESSAGE_CHARS]}{surface.symbols.cut}"
    mark, style = (surface.symbols.to, "bold") if here else (" ", "dim")
    surface.print_block(f"  {mark} {one.number:>5,} {one.message.role:<9} {shown}", style)


def _search_around_command(query: str, wanted: SearchOptions) -> str:
    given = [
        ("--user", wanted.user), ("--role", wanted.role), ("--since", wanted.since),
        ("--until", wanted.until), ("--session", wanted.session), ("--around", 2),
    ]  # fmt: skip
    return hints.command_line("search", *hints.given_options(given), named=query, on=wanted.store_options)


_FACT_ID_PREFIX = "fact_"
_SHORT_FACT_ID_CHARS = len(_FACT_ID_PREFIX) + 8


def show_profile(
    user: str, /, *, budget: Positive = limits.BOOTSTRAP_TOKENS, common: CommonOptions = CommonOptions()
) -> None:
    """Show the profile that a new session gets of a user.

    Example: limpet memory profile ada

    Args:
        user: The user's id.
        budget: The largest number of tokens of the profile.
    """
    surface = Output(common)
    with target.open_store(common) as lp:
        found = lp.memory.profile(user, budget)
        known = bool(found.facts or lp.memory.facts(user))
    if surface.mode is OutputMode.JSON:
        facts = [_fact_document(fact) for fact in found.facts]
        surface.print_json({"user": user, "budget": budget, "tokens": found.tokens, "text": found.text, "facts": facts})
    elif found.text:
        print(output.escape_text(found.text))
        surface.note(
            f"{found.tokens:,} of {budget:,} tokens, {output.quantity(len(found.facts), 'fact')}."
            f" To list the facts: {hints.command_line('memory list', named=user, on=common.store_options)}"
        )
    elif known:
        surface.note(f"No fact about {user!r} fits into {budget:,} tokens. Raise --budget.")
    else:
        _note_nothing_known(surface, user, common)


def list_facts(
    user: str,
    /,
    *,
    all: Switch = False,  # noqa: A002 - the name of the option
    common: CommonOptions = CommonOptions(),
) -> None:
    """List the facts about a user, newest first.

    Example: limpet memory list ada --all

    Args:
        user: The user's id.
        all: Also facts that no longer hold.
    """
    surface = Output(common)
    with target.open_store(common) as lp:
        known = lp.memory.facts(user)
    found = [fact for fact in known if all or fact.until_us is None]
    documents = [_fact_document(fact) for fact in found]
    rows = ([document[name] for name in _FACT_COLUMNS] for document in documents)
    if surface.print_data({"user": user, "facts": documents}, rows):
        return
    if found:
        _print_facts(surface, found)
        command = hints.command_line("memory why", _short_fact_id(found[0]), named=user, on=common.store_options)
        surface.note(f"To show the source of a fact: {command}")
    elif known:
        command = hints.command_line("memory list", "--all", named=user, on=common.store_options)
        surface.note(f"No fact about the user holds any more. To list earlier facts: {command}")
    else:
        _note_nothing_known(surface, user, common)


_FACT_COLUMNS = ("id", "kind", "about", "since", "until", "session", "message", "text")
"""The columns of a TSV line, in order."""


def _print_facts(surface: Output, found: list[Fact]) -> None:
    rows: list[list[Cell]] = [
        [
            (_short_fact_id(fact), "cyan"),
            fact.kind,
            output.relative_time(ids.iso(fact.since_us)),
            "now" if fact.until_us is None else f"until {ids.iso(fact.until_us)[:10]}",
            (fact.text, "" if fact.until_us is None else "dim"),
        ]
        for fact in found
    ]
    surface.print_table(["ID", "KIND", "SAID", "HOLDS", "FACT"], rows)


def _short_fact_id(fact: Fact) -> str:
    return fact.id[:_SHORT_FACT_ID_CHARS]


def explain_fact(user: str, fact: str, /, *, around: NonNegative = 2, common: CommonOptions = CommonOptions()) -> None:
    """Show the message that a fact comes from, and the messages around it.

    Example: limpet memory why ada 7f3a

    Args:
        user: The user's id.
        fact: The fact's id, or a unique prefix of it.
        around: The number of messages to show before and after it.
    """
    surface = Output(common)
    with target.open_store(common) as lp:
        found = _find_fact(lp, user, fact)
        source = found.source
        beside = lp.archive.open((source.session_id, source.message_id), around=around)
    document: Json = {"fact": _fact_document(found), "around": [message_document(one) for one in beside]}
    if not surface.print_data(document, map(_message_row, beside)):
        surface.print_line(f"{found.text}  ({found.kind}, said {output.relative_time(ids.iso(found.since_us))})")
        surface.print_line(source.session_id)
        for one in beside:
            print_message(surface, one, here=one.position == source.position)


def _message_row(one: ArchivedMessage) -> tuple[object, ...]:
    text = one.message.content if isinstance(one.message.content, str) else ""
    return (one.session_id, one.number, one.message.role, ids.iso(one.time_us), one.message.id, text)


def _find_fact(lp: Limpet, user: str, reference: str) -> Fact:
    known = list(lp.memory.facts(user))
    wanted = _FACT_ID_PREFIX + reference.removeprefix(_FACT_ID_PREFIX)
    found = [fact for fact in known if fact.id.startswith(wanted)]
    if len(found) == 1:
        return found[0]
    several = "is a prefix of more than one fact's id" if found else "names no fact"
    why = f"Memory has {output.quantity(len(known), 'fact')} about this user, including facts that no longer hold."
    if found:
        why = f"It could be {', '.join(map(_short_fact_id, found[:3]))}{' and more' if len(found) > 3 else ''}."
    raise exit_codes.failure(
        exit_codes.USAGE if found else exit_codes.NOT_FOUND,
        "ambiguous_id" if found else errors.NotFound.code,
        f"{reference!r} {several} of {user!r}.",
        why,
        "Give more of the id, or list them:" if found else "",
        command=("memory list", "--all"),
        subject=user,
    )


def search_memory(user: str, query: str, /, *, limit: Limit = 10, common: CommonOptions = CommonOptions()) -> None:
    """Search the facts and the messages of a user together. The best match comes first.

    Example: limpet memory search ada "which seat"

    Args:
        user: The user's id.
        query: A question or words.
    """
    surface = Output(common)
    with target.open_store(common) as lp:
        found = list(lp.memory.search(user, query, limit))
    documents = [_recalled_document(one) for one in found]
    rows = (
        (one["kind"], f"{one['score']:.4f}", one["time"], one["session"], one["message"], one["text"])
        for one in documents
    )
    if not surface.print_data({"user": user, "found": documents}, rows):
        for one in found:
            _print_recalled(surface, one)
    if not found and surface.mode is not OutputMode.JSON:
        surface.note("Nothing was found.")


def _print_recalled(surface: Output, one: MemoryResult) -> None:
    session = one.source.session_id if one.source else ""
    when = output.relative_time(ids.iso(one.time_us))
    surface.print_head((session, "cyan"), f"  {one.kind or 'message'}  ", (when, "dim"))
    surface.print_block(output.escape_line(f"  {one.text}"))


def _note_nothing_known(surface: Output, user: str, common: CommonOptions) -> None:
    command = _worker_command(common)
    surface.note(f"Memory has no fact about {user!r}. A worker extracts facts from ended conversations: {command}")


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


def show_queue(*, replay: str | None = None, common: CommonOptions = CommonOptions()) -> None:
    """Show ended conversations that memory has not ingested: waiting, failing or given up.

    Example: limpet memory queue --replay all

    Args:
        replay: Retry a conversation that was given up, by its key; "all" retries all of them.
    """
    surface = Output(common)
    with target.open_store(common) as lp:
        replayed = None
        if replay is not None:
            replayed = lp.memory.replay(None if replay == "all" else replay)
            if not replayed and replay != "all":
                raise exit_codes.failure(
                    exit_codes.NOT_FOUND,
                    errors.NotFound.code,
                    f"{replay!r} is not the key of a conversation that was given up.",
                    "The list has the keys in its first column.",
                    "",
                    command=("memory queue",),
                )
        queue, behind = lp.memory.queue(), lp.memory.behind()
    if surface.mode is OutputMode.JSON:
        rows = [
            {**{name: getattr(one, name) for name in one.__struct_fields__ if name != "retry_us"},
             "retry_at": _next_try(one)} for one in queue
        ]  # fmt: skip
        surface.print_json({"queue": rows, "behind": behind, "replayed": replayed})
        return
    if replayed is not None:
        surface.note(f"{output.quantity(replayed, 'conversation')} will be retried.")
    if surface.mode is OutputMode.PIPE:
        for one in queue:
            state = "dead" if one.dead else "waiting"
            surface.print_row(one.key, state, one.session_id, one.generation, one.tries, _next_try(one), one.error)
    elif queue:
        _print_queue(surface, queue)
        if any(one.dead for one in queue):
            command = hints.command_line("memory queue", "--replay", "all", on=common.store_options)
            surface.note(f"To retry the conversations that were given up: {command}")
    if behind:
        told = f"{output.quantity(behind, 'event')} of the log {'waits' if behind == 1 else 'wait'} for a worker"
        command = hints.command_line("worker", "--once", on=common.store_options)
        surface.note(f"{told}, which finds the conversations that have ended: {command}")
    elif not queue:
        surface.note(
            "The queue is empty. Conversations enter it when they end, and leave it when memory has ingested them."
        )


def _next_try(one: QueuedOffload) -> str | None:
    return ids.iso(one.retry_us) if one.retry_us else None


def _print_queue(surface: Output, queue: Sequence[QueuedOffload]) -> None:
    rows: list[list[Cell]] = [
        [
            (one.key, "cyan"),
            ("given up", "red") if one.dead else "waiting",
            f"{one.tries}",
            _next_try(one) or "",
            one.error or "",
        ]
        for one in queue
    ]
    surface.print_table(["KEY", "STATE", ">TRIES", "NEXT TRY", "ERROR"], rows)


_PREVIEW_CHARS = 200
_YES_HELP = "Do not ask for confirmation, and accept only a whole id. Needed with --json and without a terminal: exit 2 otherwise."


def forget_user(user: str, /, *, yes: Confirmed = False, common: CommonOptions = CommonOptions()) -> None:
    """Erase all data of a user: conversations, facts, search index, freed pages. Asks first.

    Afterwards no file of the store has the data, and the log still verifies. A backup is erased when it is restored.

    Example: limpet memory forget ada

    Args:
        user: The user's id.
    """
    surface = Output(common)
    with target.open_store(common, writes=True) as lp:
        counts = [int(row["message_count"]) for row in target.session_rows(lp, user)]
        facts = len(lp.memory.facts(user))
        lines = [
            f"  {output.quantity(len(counts), 'session')} with {output.quantity(sum(counts), 'message')}",
            f"  {output.quantity(facts, 'fact')} of memory",
            "  and everything derived from them: search index, summaries, recorded windows, frames",
        ]
        question = f"permanently forget {user} in {target.store_name(common.url)}?"
        surface.confirm(question, lines, yes=yes)
        receipt = lp.memory.forget(user)
    _print_receipt(surface, receipt, f"forgot {user}", f"The store has no data of {user!r}.")


def erase_stored(
    session: str | None = None,
    /,
    *,
    message: str | None = None,
    yes: Annotated[Confirmed, Parameter(help=_YES_HELP)] = False,
    common: CommonOptions = CommonOptions(),
) -> None:
    """Erase a session, one message, or all deleted sessions from every file. Asks first.

    Example: limpet erase @last --message 12

    Args:
        session: Its id, a prefix of it, @last, or @last~2. Without it, all deleted sessions are erased.
        message: Only this message: its number or its id. The conversation stays usable without its text.
    """
    surface = Output(common)
    with target.open_store(common, writes=True) as lp:
        if session is None:
            if message is not None:
                then = "Name the session first: limpet erase SESSION --message 12"
                raise exit_codes.usage_failure("--message needs a session.", then)
            what, lines, erase = "all deleted sessions", list[str](), lp.admin.erase
        else:
            found = (target.find_session_by_exact_id if yes else target.find_session)(lp, session)
            held = output.quantity(found.message_count, "message")
            what, lines, erase = f"{found.id} ({held})", [], partial(lp.admin.erase, session_id=found.id)
            if message is not None:
                named, lines = _find_message(found, message)
                what, erase = f"message {message} of {found.id}", partial(erase, message_id=named)
        surface.confirm(f"permanently erase {what} in {target.store_name(common.url)}?", lines, yes=yes)
        receipt = erase()
    _print_receipt(surface, receipt, f"erased {what}", "There was nothing to erase.")


def _find_message(session: Session, reference: str) -> tuple[str, list[str]]:
    """Return the id of the message that a number or an id names, and a preview of the message for the question."""
    number = reference.removeprefix("#")
    if not number.isdecimal():
        return reference, []
    at = int(number)
    if not 1 <= at <= session.message_count:
        raise exit_codes.failure(
            exit_codes.NOT_FOUND,
            errors.MessageNotFound.code,
            f"{session.id} has no message #{at:,}.",
            f"It has {output.quantity(session.message_count, 'message')}, numbered from 1.",
            "",
            facts={"session": session.id},
            command=("sessions show",),
            subject=session.id,
        )
    meant = session.messages[at - 1]
    return meant.id, [f"  {meant.role}: {summary.message_text(meant)[:_PREVIEW_CHARS]}"]


def _print_receipt(surface: Output, receipt: Receipt, done: str, nothing: str) -> None:
    data = receipt.to_dict()
    if not surface.print_data(data, data.items()):
        told = [
            output.quantity(getattr(receipt, name), noun)
            for name, noun in (("sessions", "session"), ("events", "event"), ("frames", "frame"), ("blobs", "blob"))
            if getattr(receipt, name)
        ]  # fmt: skip
        if receipt.rows:
            told.append(f"{output.quantity(receipt.rows, 'row')} of index and memory")
        numbers = f"{', '.join(told)}. Receipt {receipt.id}" if told else "there was nothing."
        surface.print_line(f"{surface.symbols.good} {done}: {numbers}")
    gone = receipt.sessions or receipt.events or receipt.frames or receipt.blobs or receipt.rows
    if surface.mode is not OutputMode.TERMINAL and not gone and not receipt.waiting:
        surface.note(nothing)
    if receipt.waiting:
        hidden = output.quantity(receipt.waiting, "session")
        surface.note(f"{hidden} hidden until the last fork that reads from it is erased.")
    if receipt.pending:
        surface.note(
            "A reader is active: traces stay in files until the next erasure or the next opening of the store."
        )
