"""Checks the arguments of session verbs and makes requests and queries of them.

Blocking and async verbs share these checks and defaults.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final, Literal, cast

import msgspec
from msgspec.structs import force_setattr

from limpet import errors, limits
from limpet.core.formats import codec, intake
from limpet.core.rules import frame_rules
from limpet.core.values import commands as c
from limpet.core.values import ids
from limpet.core.values.messages import Message, ToolCallResult
from limpet.core.values.session_state import EndReason, OpenCall, ReportedUsage, SessionStatus, WindowPolicy
from limpet.core.values.validation import (
    EMPTY,
    Json,
    checked_choice,
    checked_id,
    checked_instance,
    checked_int,
    checked_limit,
    checked_number,
    checked_str,
    freeze_object,
)
from limpet.core.windows import recorded_selection
from limpet.core.windows.window import Window
from limpet.runtime import message_cache, state_cache
from limpet.stores import port

MessageLike = intake.MessageLike
When = str | datetime | int
"""ISO 8601 text, a datetime, or microseconds since 1970 UTC."""

Write = Literal["durable", "deferred"]

NUMBER_MAX: Final = 1 << 62
"""Beyond this a number is no offset and no moment, and a database can't hold it."""

UNKNOWN_OUTCOME: Final = frame_rules.UNKNOWN_OUTCOME_TEXT


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How a session manager works."""

    tenant: str = "default"
    max_messages_per_session: int = 5000
    max_sessions_in_memory: int = 20
    auto_save_interval: float = 60
    write: Write = "durable"
    policy: WindowPolicy | None = None

    def __post_init__(self) -> None:
        force_setattr(self, "tenant", checked_id("a tenant's name", self.tenant))
        for name in ("max_messages_per_session", "max_sessions_in_memory"):
            checked_int(name, getattr(self, name), 1)
        checked_number("auto_save_interval", self.auto_save_interval, unit="a number of seconds", hint="0 is off.")
        checked_choice("write", self.write, ("durable", "deferred"))
        checked_policy(self.policy)


def checked_policy(policy: WindowPolicy | None) -> WindowPolicy | None:
    """Return the policy; None stays None. Raises if its counter is unknown, or its budget holds no message."""
    if policy is None:
        return None
    checked_instance("a policy", policy, WindowPolicy, hint="For example WindowPolicy(budget=8_000).")
    measure = message_cache.policy_counter(policy, ())
    if measure.counted.overhead >= policy.budget:
        raise errors.InvalidRequest(
            f"the policy's budget of {policy.budget:,} leaves nothing beside the {measure.counted.overhead:,} that a reply takes.",
            hint="Raise the budget.",
            facts={"budget": policy.budget, "required": measure.counted.overhead + 1},
        )
    return policy


def _checked_usage(window: Window | None, usage: int | None) -> ReportedUsage | None:
    if usage is None:
        return None
    if type(cast("object", usage)) is not int or not 1 <= usage <= limits.TOKENS_MAX:
        raise errors.InvalidRequest(f"usage is the number of input tokens that the provider reported, not {usage!r}.")
    if window is None:
        raise errors.InvalidRequest(
            "usage was given without its window.", hint="Give both: add_message(reply, window=w, usage=n)."
        )  # fmt: skip
    counter, plain = window.plain
    # An exact counter needs no correction, and one from a list has nobody to keep it.
    return None if window.exact or plain < 1 else ReportedUsage(counter, plain, usage)


class SessionRequests:
    """Makes requests of one tenant."""

    def __init__(self, settings: Settings, factory: ids.Factory) -> None:
        self._settings = settings
        self._factory = factory

    def _request(self, command: c.SessionCommand, key: str | None, expected_version: int | None) -> c.CommandRequest:
        if key is not None:
            key = checked_id("an idempotency key", key)
        if expected_version is not None and type(expected_version) is not int:
            raise errors.InvalidRequest("expected_version is a session's version: an int.")
        return c.CommandRequest(
            tenant=self._settings.tenant, command=command, key=key, expected_version=expected_version
        )

    def create(
        self, session_id: str | None = None, *, user_id: str | None = None, system: str | None = None,
        title: str | None = None, metadata: Mapping[str, Json] | None = None, or_get: bool = False,
        key: str | None = None, policy: WindowPolicy | None = None,
    ) -> c.CommandRequest:  # fmt: skip
        command = c.CreateSession(
            session_id=checked_id(
                "a session's id", session_id if session_id is not None else ids.new_session_id(self._factory)
            ),
            user_id=user_id if user_id is None else checked_id("a user's id", user_id),
            title=title,
            metadata=freeze_object("metadata", EMPTY if metadata is None else metadata),
            messages=_system_messages(system),
            or_get=or_get,
            named=session_id is not None,
            policy=checked_policy(policy) or self._settings.policy,
        )
        return self._request(command, key, None)

    def messages(self, values: Iterable[MessageLike]) -> tuple[Message, ...]:
        if type(values) not in (tuple, list) and (
            not isinstance(cast("object", values), Iterable) or isinstance(values, (str, Mapping))
        ):
            raise errors.InvalidRequest("messages come in a list.", hint="For one, use add_message.")
        made = tuple(
            [v if type(v) is Message and v.openai is v.anthropic is None else intake.accept(v) for v in values]
        )
        if len(made) > limits.BATCH_MESSAGES_MAX:
            raise errors.TooLarge(
                f"{len(made):,} messages at once; at most {limits.BATCH_MESSAGES_MAX:,} are taken.",
                hint="Add them in several steps.",
                facts={"messages": len(made), "messages_max": limits.BATCH_MESSAGES_MAX},
            )
        return made

    def add(
        self,
        session_id: str,
        values: Iterable[MessageLike],
        *,
        key: str | None = None,
        expected_version: int | None = None,
        window: Window | None = None,
        usage: int | None = None,
    ) -> c.CommandRequest:
        """Return a request that appends messages to a session, by its checked id.

        The model that said them had seen `window`, for `usage` tokens.
        """
        messages = self.messages(values)
        if not messages:
            raise errors.InvalidRequest("there is no message to add.")
        command = c.AddMessages(
            session_id=session_id,
            messages=messages,
            max_messages=self._settings.max_messages_per_session,
            window=None
            if window is None
            else recorded_selection.window_selection(window, self._settings.tenant, session_id),
            usage=_checked_usage(window, usage),
        )
        return self._request(command, key, expected_version)

    def add_to(
        self, session_id: str, messages: Iterable[MessageLike], *, key: str | None = None,
        expected_version: int | None = None,
    ) -> c.CommandRequest:  # fmt: skip
        """Return a request that appends messages to a session, by the id that a caller gave."""
        named = checked_id("a session's id", session_id)
        return self.add(named, messages, key=key, expected_version=expected_version)

    def update(
        self, session_id: str, *, title: str | None | msgspec.UnsetType = msgspec.UNSET,
        metadata: Mapping[str, Json] | None = None, drop_metadata: Sequence[str] = (), key: str | None = None,
        expected_version: int | None = None, policy: WindowPolicy | None | msgspec.UnsetType = msgspec.UNSET,
    ) -> c.CommandRequest:  # fmt: skip
        if not isinstance(cast("object", drop_metadata), (list, tuple, set, frozenset)):
            raise errors.InvalidRequest("drop_metadata is a list of keys.", hint='For one: drop_metadata=["team"].')
        command = c.UpdateSession(
            session_id=checked_id("a session's id", session_id),
            title=title,
            set_metadata=freeze_object("metadata", EMPTY if metadata is None else metadata),
            drop_metadata=tuple(checked_id("a metadata key", name) for name in drop_metadata),
            policy=policy if policy is msgspec.UNSET else checked_policy(policy),
        )
        return self._request(command, key, expected_version)

    def end(
        self,
        session_id: str,
        *,
        reason: EndReason = EndReason.ENDED,
        idle_since_us: int | None = None,
        key: str | None = None,
    ) -> c.CommandRequest:
        named = checked_id("a session's id", session_id)
        return self._request(c.EndSession(session_id=named, reason=reason, idle_since_us=idle_since_us), key, None)

    def reset(self, session_id: str, *, system: str | None, key: str | None) -> c.CommandRequest:
        named = checked_id("a session's id", session_id)
        return self._request(c.ResetSession(session_id=named, messages=_system_messages(system)), key, None)

    def fork(
        self, session_id: str, at: str | int | None, *, new_id: str | None, user_id: str | None, title: str | None,
        metadata: Mapping[str, Json] | None, key: str | None, version: int | None = None,
    ) -> c.CommandRequest:  # fmt: skip
        """A request that begins a session as another was at a message, or at a version."""
        command = c.ForkSession(
            session_id=checked_id("a session's id", session_id),
            fork_id=checked_id("a session's id", ids.new_session_id(self._factory) if new_id is None else new_id),
            at=None if at is None else _checked_message_reference(at),
            version=version,
            user_id=user_id if user_id is None else checked_id("a user's id", user_id),
            title=title,
            metadata=None if metadata is None else freeze_object("metadata", metadata),
            named=new_id is not None,
        )
        return self._request(command, key, None)

    def rewind(
        self, session_id: str, at: str | int, *, key: str | None, expected_version: int | None
    ) -> c.CommandRequest:
        named = checked_id("a session's id", session_id)
        command = c.RewindSession(session_id=named, at=_checked_message_reference(at))
        return self._request(command, key, expected_version)

    def continue_(self, session_id: str, *, key: str | None) -> c.CommandRequest:
        command = c.ContinueSession(session_id=session_id, max_messages=self._settings.max_messages_per_session)
        return self._request(command, key, None)

    def closing_message(
        self, calls: Sequence[OpenCall], call_ids: Sequence[str] | None, outcome: str
    ) -> Message | None:
        """The tool message that closes open calls with a truthful result; None if there is none to close."""
        waiting = [call.call_id for call in calls]
        chosen = waiting if call_ids is None else list(call_ids)
        for call_id in chosen:
            if call_id not in waiting:
                raise errors.CallNotFound(f"no open call has the id {call_id!r}.", facts={"open": waiting})
        if not chosen:
            return None
        results = [ToolCallResult(call_id, outcome, is_error=True) for call_id in chosen]
        return Message("tool", tool_results=results, metadata={"type": "outcome_unknown"})


def list_query(
    *, limit: int, offset: int, cursor: str | None, user_id: str | None, status: str | None,
    active_after: When | None, active_before: When | None, metadata: Mapping[str, Json] | None,
) -> port.Query:  # fmt: skip
    checked_limit(limit)
    checked_int("offset", offset, 0, NUMBER_MAX, unit="a number of rows")
    if user_id is not None:
        user_id = checked_id("a user's id", user_id)
    if status is not None and status not in (SessionStatus.ACTIVE, SessionStatus.ENDED):
        raise errors.InvalidRequest("status is 'active' or 'ended'.")
    return port.Query(
        kind=state_cache.SESSION_KIND,
        owner=user_id,
        status=status,
        since_us=moment_us(active_after),
        until_us=moment_us(active_before),
        terms=_filter_terms(EMPTY if metadata is None else metadata),
        after=_decode_cursor(cursor) if cursor is not None else None,
        offset=offset,
        limit=limit,
    )


def _system_messages(system: str | None) -> tuple[Message, ...]:
    if system is None:
        return ()
    return (intake.accept({"role": "system", "content": checked_str("a system prompt", system)}),)


def _checked_message_reference(at: str | int) -> str | int:
    if isinstance(cast("object", at), str):
        return checked_id("a message's id", cast("str", at))
    if type(cast("object", at)) is not int or cast("int", at) < 1:
        raise errors.InvalidRequest("a message is named by its id, or by its number: a whole number from 1 on.")
    return at


def _filter_terms(metadata: Mapping[str, Json]) -> tuple[str, ...]:
    frozen = freeze_object("a metadata filter", metadata)
    made = state_cache.metadata_terms(frozen)
    if len(made) != len(frozen):
        raise errors.InvalidRequest("a metadata filter compares text, numbers, booleans or None of at most 500 bytes.")
    if len(made) > limits.FILTER_TERMS_MAX:
        raise errors.InvalidRequest(f"a metadata filter has at most {limits.FILTER_TERMS_MAX} keys.")
    return made


def moment_us(moment: When | None) -> int | None:
    """Return a moment as microseconds since 1970; raise InvalidRequest if it is none."""
    if moment is None:
        return None
    if type(moment) is int and abs(moment) <= NUMBER_MAX:
        return moment
    try:
        return ids.microseconds(cast("str | datetime", moment))
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        raise errors.InvalidRequest(
            "a moment is ISO 8601 text, a datetime, or microseconds since 1970.",
            hint="For example 2026-01-31T12:00:00+00:00.",
        ) from error


def idle_cutoff_us(now: When | None, clock: Callable[[], int], idle_s: float) -> int:
    """Return the moment before which a session's last activity makes it idle."""
    checked_number("idle_s", idle_s, unit="a number of seconds")
    moment = moment_us(now)
    idle_us = int(min(idle_s * 1_000_000, NUMBER_MAX))
    return max((clock() if moment is None else moment) - idle_us, -NUMBER_MAX)


def idle_sessions_query(before_us: int) -> port.Query:
    """A page of active sessions whose last activity is not after a moment."""
    return port.Query(
        kind=state_cache.SESSION_KIND, status=SessionStatus.ACTIVE, until_us=before_us, limit=limits.PAGE_SIZE_MAX
    )


class Page(list[dict[str, Json]]):
    """Rows of a listing. `next_cursor` gets the next page, None on the last."""

    next_cursor: str | None = None


def session_page(rows: Sequence[port.Projection], limit: int) -> Page:
    """Return a listing page from its projections, of which there may be one more than asked for."""
    shown = rows[:limit]
    made = Page(
        codec.decode_info(row.document, id=row.id, user_id=row.owner or None, active_us=row.time_us).to_dict()
        for row in shown
    )
    if len(rows) > limit:
        place = msgspec.json.encode((shown[-1].time_us, shown[-1].id))
        made.next_cursor = base64.urlsafe_b64encode(place).decode()
    return made


def _decode_cursor(cursor: str) -> tuple[int, str]:
    try:
        data = base64.urlsafe_b64decode(cursor.encode())
        time_us, id_ = msgspec.json.decode(data, type=tuple[int, str])
        if abs(time_us) > NUMBER_MAX:
            raise ValueError(time_us)
    except (ValueError, AttributeError, msgspec.MsgspecError) as error:
        raise errors.InvalidRequest(
            "that is not a cursor of a listing.", hint="Take it from next_cursor of the page before."
        ) from error
    return time_us, id_
