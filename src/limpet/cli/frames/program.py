"""The commands about frames, suspensions and events as cyclopts knows them. What they do is in their own modules."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from cyclopts import App, Parameter
from cyclopts.validators import Number

from limpet.cli.options import Common, Flag, Positive

frames = App(
    name="frames", help="Work in progress: its tree, its tokens, what waits; resolve and cancel."
)
suspensions = App(name=["suspensions", "approvals"], help="What waits for a person's word.")
events = App(name="events", help="The log.")

_COMMON = Common()
Position = Annotated[int, Parameter(validator=Number(gte=0))]


@frames.command(name="list")
def list_frames(
    *,
    actor: str | None = None,
    session: str | None = None,
    all: Annotated[bool, Flag] = False,  # noqa: A002 - the name of the option
    limit: Positive = 50,
    common: Common = _COMMON,
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
    from limpet.cli.frames import listing  # noqa: PLC0415 - a command loads only what it needs

    return listing.run(listing.Filter(actor=actor, session=session, all=all, limit=limit), common)


@frames.command
def tree(
    reference: Annotated[str, Parameter(name="ACTOR|FRAME")],
    /,
    *,
    all: Annotated[bool, Flag] = False,  # noqa: A002 - the name of the option
    common: Common = _COMMON,
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
    from limpet.cli.frames import tree as command  # noqa: PLC0415

    return command.run(reference, all_=all, common=common)


@frames.command(name="show")
def show_frame(frame: str, /, *, common: Common = _COMMON) -> int:
    """Show a frame: goal, tokens, limits in force, handles, tools in progress, results, suspension.

    Example: limpet frames show @last

    Parameters
    ----------
    frame
        Its id, the beginning of it, @last, or @last~2.
    """
    from limpet.cli.frames import showing  # noqa: PLC0415

    return showing.run(frame, common)


@frames.command
def pack(
    frame: str,
    /,
    *,
    at: Positive | None = None,
    provider: Annotated[
        Literal["openai", "responses", "anthropic", "gemini"] | None, Parameter(name="--as")
    ] = None,
    common: Common = _COMMON,
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
    from limpet.cli.frames import packs  # noqa: PLC0415

    return packs.run(frame, packs.Wanted(at=at, provider=provider), common)


@frames.command
def pending(actor: str, /, *, session: str | None = None, common: Common = _COMMON) -> int:
    """Show what an actor would find if it came back now. Nothing is resumed or changed.

    Example: limpet frames pending planner

    Parameters
    ----------
    actor
        Whose work.
    session
        Only what is about this session: its id, the beginning of it, or @last.
    """
    from limpet.cli.frames import pending as frames_pending  # noqa: PLC0415

    return frames_pending.run(actor, session, common)


@frames.command
def resolve(
    frame: str,
    tool: str,
    how: Literal["retry", "result", "abandon"],
    /,
    *,
    output: str | None = None,
    failed: Annotated[bool, Flag] = False,
    common: Common = _COMMON,
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
    from limpet.cli.frames import acting  # noqa: PLC0415

    return acting.resolve(frame, tool, how, output=output, failed=failed, common=common)


@frames.command
def cancel(
    frame: str,
    /,
    *,
    cascade: Annotated[bool, Flag] = False,
    reason: str = "",
    yes: Annotated[bool, Flag] = False,
    common: Common = _COMMON,
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
    from limpet.cli.frames import acting  # noqa: PLC0415

    return acting.cancel(frame, cascade=cascade, reason=reason, yes=yes, common=common)


@suspensions.command(name="list")
def list_suspensions(
    *,
    all: Annotated[bool, Flag] = False,  # noqa: A002 - the name of the option
    actor: str | None = None,
    limit: Positive = 50,
    common: Common = _COMMON,
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
    from limpet.cli.frames import suspensions as frames_suspensions  # noqa: PLC0415

    return frames_suspensions.list_(all_=all, actor=actor, limit=limit, common=common)


@suspensions.command(name="show")
def show_suspension(suspension: str, /, *, common: Common = _COMMON) -> int:
    """Show what is asked about, by whom, until when, and how it was decided.

    Example: limpet suspensions show @last

    Parameters
    ----------
    suspension
        Its id, the beginning of it, @last, or @last~2.
    """
    from limpet.cli.frames import suspensions as frames_suspensions  # noqa: PLC0415

    return frames_suspensions.show(suspension, common)


@suspensions.command
def approve(
    suspension: str,
    /,
    *,
    reason: str = "",
    by: str | None = None,
    yes: Annotated[bool, Flag] = False,
    common: Common = _COMMON,
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
    return _decide(suspension, common, word="approve", reason=reason, by=by, yes=yes)


@suspensions.command
def edit(
    suspension: str,
    /,
    *,
    payload: str,
    reason: str = "",
    by: str | None = None,
    yes: Annotated[bool, Flag] = False,
    common: Common = _COMMON,
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
    return _decide(suspension, common, word="edit", reason=reason, by=by, payload=payload, yes=yes)


@suspensions.command(name=["reject", "deny"])
def reject(
    suspension: str,
    /,
    *,
    reason: str = "",
    by: str | None = None,
    yes: Annotated[bool, Flag] = False,
    common: Common = _COMMON,
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
    return _decide(suspension, common, word="reject", reason=reason, by=by, yes=yes)


@suspensions.command
def revoke(
    suspension: str,
    /,
    *,
    reason: str = "",
    by: str | None = None,
    yes: Annotated[bool, Flag] = False,
    common: Common = _COMMON,
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
    return _decide(suspension, common, word="revoke", reason=reason, by=by, yes=yes)


def _decide(suspension: str, common: Common, **said: Any) -> int:
    from limpet.cli.frames import acting  # noqa: PLC0415

    return acting.decide(suspension, acting.Said(**said), common)


@events.command
def tail(
    *,
    session: str | None = None,
    frame: str | None = None,
    since: Position | None = None,
    limit: Positive | None = None,
    follow: Annotated[
        bool, Parameter(name=["--follow", "-f"], negative="", show_default=False)
    ] = False,
    common: Common = _COMMON,
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
    from limpet.cli.frames import tail as frames_tail  # noqa: PLC0415

    wanted = frames_tail.Wanted(
        session=session, frame=frame, since=since, limit=limit, follow=follow
    )
    return frames_tail.run(wanted, common)
