"""The rules of suspensions: one at a time, ended once, by whoever has the right to."""

from __future__ import annotations

import hmac

import msgspec

from limpet import errors
from limpet.core.values import commands as c
from limpet.core.values import events as e
from limpet.core.values.frame_state import Decision, Frame, Suspension, SuspensionStatus

Command = c.SuspendFrame | c.EndSuspension | c.RevokeSuspension


def decide(frame: Frame, command: Command, now_us: int) -> e.FrameEvent | None:
    """Return the event that a command about a suspension makes; None if it is so already."""
    match command:
        case c.SuspendFrame():
            return _suspend(frame, command, now_us)
        case c.EndSuspension():
            return _resume(frame, command, now_us)
        case c.RevokeSuspension():
            return _revoke(frame, command)


def _suspend(frame: Frame, command: c.SuspendFrame, now_us: int) -> e.FrameEvent:
    standing = frame.suspension
    expires = None if command.expires_in_us is None else now_us + command.expires_in_us
    if command.again:
        if (
            standing is None
            or standing.suspension_id != command.suspension_id
            or standing.status is not SuspensionStatus.WAITING
        ):
            raise errors.AlreadyDecided("the suspension was ended meanwhile.")
        return e.FrameUpdatedEvent(
            frame_id=frame.frame_id, token_hash=command.token_hash, expires_us=expires
        )
    if standing is not None and waits(standing, now_us):
        raise errors.AlreadySuspended(
            f"the frame {frame.frame_id!r} is suspended already.",
            hint="Resume it, decide it, or revoke its suspension first.",
            facts={"frame": frame.frame_id, "suspension": standing.suspension_id},
        )
    return e.FrameSuspendedEvent(
        frame_id=frame.frame_id,
        suspension_id=command.suspension_id,
        token_hash=command.token_hash,
        reason=command.reason,
        purpose=command.purpose,
        payload=command.payload,
        expires_us=expires,
    )


def waits(suspension: Suspension, now_us: int) -> bool:
    """Whether a suspension can still be ended."""
    over = suspension.expires_us is not None and suspension.expires_us <= now_us
    return suspension.status is SuspensionStatus.WAITING and not over


def _resume(frame: Frame, command: c.EndSuspension, now_us: int) -> e.FrameResumedEvent:
    standing = frame.suspension
    if standing is None or standing.suspension_id != command.suspension_id:
        raise _not_this(command)
    if command.token_hash is not None and not (
        hmac.compare_digest(standing.token_hash, command.token_hash)
        and command.purpose in (None, standing.purpose)
    ):
        raise errors.InvalidSuspensionToken
    if standing.status is SuspensionStatus.REVOKED:
        raise _not_this(command)
    if not waits(standing, now_us):
        raise errors.SuspensionExpired(
            f"the suspension {standing.suspension_id!r} expired at {standing.expires_at}.",
            hint="Suspend the frame again for a new token.",
            facts={"suspension": standing.suspension_id, "expired": standing.expires_at},
        )
    unset = command.payload is msgspec.UNSET
    if (command.decision is Decision.EDITED) is unset and command.token_hash is None:
        raise errors.InvalidRequest(
            "an edit comes with the edited payload, and only an edit does.",
            hint='For example decide_suspension(id, "edit", payload={…}).',
        )
    return e.FrameResumedEvent(
        frame_id=frame.frame_id,
        suspension_id=standing.suspension_id,
        decision=command.decision,
        payload=standing.payload if unset else command.payload,
        by=command.by,
        reason=command.reason,
    )


def _not_this(command: c.EndSuspension) -> errors.Error:
    if command.token_hash is not None:
        return errors.InvalidSuspensionToken()
    return errors.AlreadyDecided(
        f"the suspension {command.suspension_id!r} does not wait any more. Nothing was done.",
        facts={"suspension": command.suspension_id},
    )


def _revoke(frame: Frame, command: c.RevokeSuspension) -> e.FrameUpdatedEvent | None:
    standing = frame.suspension
    if standing is None or standing.suspension_id != command.suspension_id:
        raise errors.AlreadyDecided(
            f"the suspension {command.suspension_id!r} does not wait any more. Nothing was done.",
            facts={"suspension": command.suspension_id},
        )
    if standing.status is not SuspensionStatus.WAITING:
        return None
    return e.FrameUpdatedEvent(
        frame_id=frame.frame_id,
        suspension=SuspensionStatus.REVOKED,
        by=command.by,
        reason=command.reason,
    )
