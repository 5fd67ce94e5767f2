"""Checks the arguments of frame verbs and builds the commands, for blocking and async callers.

It also makes and parses suspension tokens; only a hash of a token is stored.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final, cast

import msgspec

from limpet import errors, limits
from limpet.core.rules import frame_rules
from limpet.core.values import commands as c
from limpet.core.values import ids
from limpet.core.values.context import ContextHandle, ResultRef
from limpet.core.values.frame_state import (
    Decision,
    Frame,
    FrameStatus,
    Scope,
    Suspension,
    SuspensionStatus,
    SuspensionToken,
    TokenBudget,
    ToolEffect,
    ToolRun,
)
from limpet.core.values.validation import (
    Json,
    check_size,
    checked_bool,
    checked_id,
    checked_instance,
    checked_number,
    checked_str,
    checked_token_count,
    enum_member,
    freeze,
)

UNSET = msgspec.UNSET

_GENERATED_ID: Final = re.compile(r"\.[0-9]+\Z")
"""The end of generated ids of child frames, which callers may not choose."""

DECISIONS: Final[Mapping[str, Decision]] = {
    "approve": Decision.APPROVED,
    "approved": Decision.APPROVED,
    "edit": Decision.EDITED,
    "edited": Decision.EDITED,
    "reject": Decision.REJECTED,
    "rejected": Decision.REJECTED,
}


_checked_frame_id = partial(checked_id, "a frame's id")


def _checked_own_id(value: str) -> str:
    """Return an id that a caller chose for a frame; raise InvalidRequest if it looks generated."""
    frame_id = _checked_frame_id(value)
    if len(frame_id.encode()) > limits.FRAME_ID_BYTES_MAX:
        raise errors.InvalidRequest(
            f"a frame's id has at most {limits.FRAME_ID_BYTES_MAX} bytes: its children's ids begin with it."
        )
    if _GENERATED_ID.search(frame_id):
        raise errors.InvalidRequest(
            "ids that end in a dot and a number are given by Limpet.", hint="Choose another frame_id, or leave it out."
        )
    return frame_id


def _bounded_json(what: str, value: Json) -> Json:
    frozen, hint = freeze(value), "Put large content into a handle."
    check_size(what, len(msgspec.json.encode(frozen)), limits.FRAME_JSON_BYTES_MAX, hint=hint)
    return frozen


def _checked_goal(goal: str) -> str:
    hint = "Describe its work in a few words."
    return checked_str("a frame's goal", goal, limits.FRAME_TEXT_BYTES_MAX, not_blank=True, hint=hint)


def _bounded_text(what: str, text: str) -> str:
    return checked_str(what, text, limits.FRAME_TEXT_BYTES_MAX)


def push(
    scope: Scope, *, goal: str, budget: TokenBudget | int, inputs: Json,
    parent_frame_id: str | None, frame_id: str | None, waits: bool,
) -> c.PushFrame:  # fmt: skip
    hint = 'For example Scope(actor_id="planner", session_id=session.id).'
    checked_instance("a scope", scope, Scope, hint=hint)
    if isinstance(budget, int) and type(budget) is not bool:
        budget = TokenBudget(total=budget)
    hint = "For example TokenBudget(total=8_000)."
    budget = checked_instance("a budget", budget, TokenBudget, hint=hint)
    return c.PushFrame(
        frame_id="" if frame_id is None else _checked_own_id(frame_id), scope=scope, goal=_checked_goal(goal),
        budget=budget, parent_frame_id=None if parent_frame_id is None else _checked_frame_id(parent_frame_id),
        inputs=_bounded_json("the inputs of a frame", inputs), waits=checked_bool("parent_waits", waits),
        named=frame_id is not None,
    )  # fmt: skip


def update(
    frame_id: str,
    goal: str | msgspec.UnsetType,
    inputs: Json | msgspec.UnsetType,
    status: FrameStatus | None,
    handled: Sequence[str],
) -> c.UpdateFrame:
    return c.UpdateFrame(
        frame_id=_checked_frame_id(frame_id),
        goal=goal if goal is UNSET else _checked_goal(goal),
        inputs=inputs if inputs is UNSET else _bounded_json("the inputs of a frame", inputs),
        status=None if status is None else _checked_status(status),
        handled=_checked_frame_ids(handled),
    )


def pop(frame_id: str, status: FrameStatus, summary: str, reason: str, *, cascade: bool) -> c.PopFrame:
    final = _checked_status(status)
    if not final.final:
        raise errors.InvalidRequest(f"a frame is popped as completed, failed or cancelled, not {final}.")
    return c.PopFrame(
        frame_id=_checked_frame_id(frame_id),
        final_status=final,
        result_summary=_bounded_text("the summary of a result", summary),
        reason=_bounded_text("a reason", reason),
        cascade=checked_bool("cascade", cascade),
    )


def change_reservation(frame_id: str, purpose: str, *, reserve: int = 0, release: int | None = 0) -> c.SpendTokens:
    return c.SpendTokens(
        frame_id=_checked_frame_id(frame_id),
        purpose=_checked_purpose(purpose),
        reserve=checked_token_count("amount", reserve),
        release=None if release is None else checked_token_count("amount", release),
    )


def record_usage(frame_id: str, amount: int, settles: str | None) -> c.SpendTokens:
    return c.SpendTokens(
        frame_id=_checked_frame_id(frame_id),
        purpose="" if settles is None else _checked_purpose(settles),
        use=checked_token_count("amount", amount),
        settle=settles is not None,
    )


def add_handle(frame_id: str, handle: ContextHandle) -> c.AddHandle:
    checked_instance("a handle", handle, ContextHandle)
    if handle.content_hash is not None:
        raise errors.InvalidRequest("content_hash is set by Limpet.", hint="Give the content.")
    return c.AddHandle(frame_id=_checked_frame_id(frame_id), handle=handle)


def remove_handle(frame_id: str, handle_id: str) -> c.CompactFrame:
    named = checked_id("a handle's id", handle_id)
    return c.CompactFrame(frame_id=_checked_frame_id(frame_id), removed=(named,), strategy=frame_rules.REMOVE_STRATEGY)


def add_result(frame_id: str, result: ResultRef) -> c.AddResult:
    checked_instance("a result", result, ResultRef)
    return c.AddResult(frame_id=_checked_frame_id(frame_id), result=result)


def new_secret(factory: ids.Factory) -> str:
    """Return 256 random bits as text."""
    return base64.urlsafe_b64encode(factory.random(32)).decode().rstrip("=")


def suspend(
    factory: ids.Factory, tenant: str, frame_id: str, secret: str, *, reason: str, purpose: str,
    payload: Json, expires_in_s: float | None,
) -> c.SuspendFrame:  # fmt: skip
    frame_id, purpose = _checked_frame_id(frame_id), _checked_purpose(purpose)
    if expires_in_s is not None:
        checked_number(
            "expires_in_s", expires_in_s, above=0, most=limits.SUSPENSION_S_MAX,
            unit="a number of seconds", hint="None is no expiry.",
        )  # fmt: skip
    text = checked_str("a reason", reason, limits.FRAME_TEXT_BYTES_MAX, not_blank=True)
    return c.SuspendFrame(
        frame_id=frame_id, suspension_id=ids.new_id("sus", factory),
        token_hash=token_hash(tenant, frame_id, purpose, secret), reason=text, purpose=purpose,
        payload=_bounded_json("what a suspension asks about", payload),
        expires_in_us=None if expires_in_s is None else int(expires_in_s * 1_000_000),
    )  # fmt: skip


def revoke_suspension(found: Suspension, by: str, reason: str) -> c.RevokeSuspension:
    return c.RevokeSuspension(
        frame_id=found.frame_id,
        suspension_id=found.suspension_id,
        by=_bounded_text("by", by),
        reason=_bounded_text("a reason", reason),
    )


def begin_tool(
    factory: ids.Factory, frame_id: str, name: str, *, effect: ToolEffect, call_id: str | None,
    message_id: str | None, tool_id: str | None, summary: str, intent: bool,
) -> c.BeginTool:  # fmt: skip
    made = ids.new_id("tol", factory)
    named = made if tool_id is None else checked_id("a tool's id", tool_id)
    return c.BeginTool(
        frame_id=_checked_frame_id(frame_id), tool_id=named, name=checked_id("a tool's name", name),
        key=f"idk_{hashlib.sha256(named.encode()).hexdigest()[:32]}",
        effect=ToolEffect(enum_member("an effect", ToolEffect, effect)),
        call_id=None if call_id is None else checked_id("a call's id", call_id),
        message_id=None if message_id is None else checked_id("a message's id", message_id),
        summary=checked_str("a tool's summary", summary, limits.TITLE_BYTES_MAX),
        intent=checked_bool("intent", intent), named=tool_id is not None,
    )  # fmt: skip


def end_tool(
    frame_id: str, tool_id: str, output: Json, *, is_error: bool, abandon: bool, max_messages: int
) -> c.EndTool:
    frozen, hint = freeze(output), "Store it elsewhere, and return its address."
    check_size("the output", len(msgspec.json.encode(frozen)), limits.MESSAGE_BYTES_MAX, hint=hint)
    return c.EndTool(
        frame_id=_checked_frame_id(frame_id), tool_id=checked_id("a tool's id", tool_id), output=frozen,
        is_error=checked_bool("is_error", is_error), abandon=abandon, max_messages=max_messages,
    )  # fmt: skip


def retry_tool(frame_id: str, tool_id: str) -> c.RetryTool:
    return c.RetryTool(frame_id=_checked_frame_id(frame_id), tool_id=checked_id("a tool's id", tool_id))


def _checked_frame_ids(children: Sequence[str]) -> tuple[str, ...]:
    if not isinstance(cast("object", children), (list, tuple, set, frozenset)):
        raise errors.InvalidRequest("handled is a list of frames' ids.", hint="For one: handled=[child_id].")
    return tuple(map(_checked_frame_id, children))


def _checked_status(status: FrameStatus) -> FrameStatus:
    return FrameStatus(enum_member("a frame's status", FrameStatus, status))


def _checked_purpose(purpose: str) -> str:
    return checked_str("a purpose", purpose, limits.ID_BYTES_MAX)


def find_tool_run(frame: Frame, command: c.BeginTool) -> ToolRun:
    for tool in reversed(frame.tools):
        has_same_call = tool.message_id == command.message_id and tool.call_id == command.call_id
        if tool.tool_id == command.tool_id or (command.call_id is not None and has_same_call):
            return tool
    raise errors.ToolNotFound(
        f"the tool {command.name!r} of that key has ended already.", facts={"frame": frame.frame_id}
    )


def token_hash(tenant: str, frame_id: str, purpose: str, secret: str) -> str:
    """Return the stored hash of a token, which is bound to the tenant, the frame and the purpose."""
    bound = msgspec.json.encode([tenant, frame_id, purpose, secret])
    return hashlib.sha256(bound).hexdigest()


def suspension_token(suspension: Suspension, secret: str) -> SuspensionToken:
    return SuspensionToken(
        token_id=f"{suspension.suspension_id}.{secret}",
        frame_id=suspension.frame_id,
        suspended_at=suspension.suspended_at,
        expires_at=suspension.expires_at,
        suspension_id=suspension.suspension_id,
    )


def reissue_command(tenant: str, command: c.SuspendFrame, suspension: Suspension, secret: str) -> c.SuspendFrame:
    """Return the command that replaces the token of a suspension."""
    return msgspec.structs.replace(
        command,
        suspension_id=suspension.suspension_id,
        token_hash=token_hash(tenant, command.frame_id, suspension.purpose, secret),
        again=True,
    )


def parse_token(value: SuspensionToken | str) -> tuple[str, str]:
    """Return the id of a token's suspension, and the secret; raise InvalidSuspensionToken."""
    text = value.token_id if isinstance(value, SuspensionToken) else value
    if not isinstance(cast("object", text), str) or not text.isascii() or len(text) > limits.ID_BYTES_MAX:
        raise errors.InvalidSuspensionToken
    suspension_id, _, secret = text.partition(".")
    if not suspension_id or not secret:
        raise errors.InvalidSuspensionToken
    return suspension_id, secret


def resume_command(
    tenant: str, found: Suspension, secret: str, payload: Json | msgspec.UnsetType, purpose: str | None
) -> c.EndSuspension:
    wanted = found.purpose if purpose is None else _checked_purpose(purpose)
    return c.EndSuspension(
        frame_id=found.frame_id, suspension_id=found.suspension_id, decision=Decision.RESUMED,
        token_hash=token_hash(tenant, found.frame_id, found.purpose, secret), purpose=wanted,
        payload=payload if payload is UNSET else _bounded_json("a payload", payload),
    )  # fmt: skip


def decide_command(
    found: Suspension, how: str, *, by: str, reason: str, payload: Json | msgspec.UnsetType
) -> c.EndSuspension:
    if not isinstance(cast("object", how), str) or how not in DECISIONS:
        raise errors.InvalidRequest(
            f"a suspension is decided by 'approve', 'reject' or 'edit', not {how!r}.",
            hint="To decide later, do nothing.",
        )
    return c.EndSuspension(
        frame_id=found.frame_id, suspension_id=found.suspension_id, decision=DECISIONS[how],
        payload=payload if payload is UNSET else _bounded_json("a payload", payload),
        by=checked_id("who decides", by), reason=_bounded_text("a reason", reason),
    )  # fmt: skip


def already_decided(found: Suspension) -> errors.AlreadyDecided:
    at = ids.iso(found.decided_us) if found.decided_us is not None else None
    who = f" by {found.decided_by}" if found.decided_by else ""
    when = f" at {at}" if at else ""
    what = "was revoked" if found.status is SuspensionStatus.REVOKED else f"was {found.status}"
    return errors.AlreadyDecided(
        f"the suspension {found.suspension_id!r} {what}{who}{when}. Nothing was done.",
        facts={"suspension": found.suspension_id, "status": str(found.status), "by": found.decided_by, "at": at},
    )
