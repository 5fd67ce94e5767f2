"""The model's second half: suspensions, tools, time that runs out, and actors that come back."""

from __future__ import annotations

from typing import Any

from limpet import errors
from tests.property.frame_model import UPDATED, Effect, Model, No, Pause, Told, Tool, Work


class FullModel(Model):
    """Frames that can stand still and whose tools can be lost sight of."""

    def suspend(self, frame_id: str, purpose: str, payload: Any, expires: int | None) -> Effect:
        work = self.find(frame_id)
        before = work.pause
        if before is not None and before.status == "waiting" and not before.over(self.time(work)):
            raise No(errors.AlreadySuspended, frame=frame_id, suspension=before.id)

        def effect(token: Any) -> Told:
            if before is not None and before.status == "waiting":
                before.status = "expired"
            previous = before.previous if before else work.status
            work.pause = Pause(token.suspension_id, frame_id, token.token_id, purpose, payload, previous, expires)
            self.pauses[work.pause.id] = work.pause
            self.of_frame.setdefault(frame_id, []).append(work.pause)
            work.status = "suspended"
            told = self._told(work, "frame.suspended")
            self._clocks(work)
            return told

        return effect

    def suspend_again(self, pause: Pause, expires: int | None) -> Effect:
        """The same request once more: a new token takes the first one's place."""
        if pause.frame not in self.open or pause.status != "waiting":
            raise No(errors.AlreadyDecided)

        def effect(token: Any) -> Told:
            pause.token, pause.expires = token.token_id, expires
            return self._told(self.open[pause.frame], UPDATED)

        return effect

    def resume(self, pause: Pause, token: str, purpose: str | None) -> Effect:
        if pause.frame not in self.open or self.open[pause.frame].pause is not pause:
            raise No(errors.InvalidSuspensionToken)
        if token != pause.token or purpose not in (None, pause.purpose):
            raise No(errors.InvalidSuspensionToken)
        if pause.status == "revoked":
            raise No(errors.InvalidSuspensionToken)
        return self._go_on(pause, "resumed", "")

    def decide(self, pause: Pause, how: str, payload: bool, by: str) -> Effect:
        status = {"approve": "approved", "reject": "rejected", "edit": "edited"}.get(how)
        if status is None:
            raise No(errors.InvalidRequest)
        standing = pause.frame in self.open and self.open[pause.frame].pause is pause
        if not standing or pause.status == "revoked":
            raise No(errors.AlreadyDecided, suspension=pause.id, status=pause.status, by=pause.by)
        effect = self._go_on(pause, status, by)
        if payload is not (how == "edit"):
            raise No(errors.InvalidRequest)
        return effect

    def _go_on(self, pause: Pause, status: str, by: str) -> Effect:
        work = self.open[pause.frame]
        if pause.status == "expired" or pause.over(self.time(work)):
            raise No(errors.SuspensionExpired, suspension=pause.id)

        def effect(_: Any) -> Told:
            pause.status, pause.by = status, by
            work.status, work.pause = pause.previous, None
            told = self._told(work, "frame.resumed")
            self._clocks(work)
            return told

        return effect

    def revoke(self, pause: Pause, by: str) -> Effect:
        work = self.find(pause.frame)
        if work.pause is not pause:
            raise No(errors.AlreadyDecided, suspension=pause.id)
        if pause.status != "waiting":
            return lambda _: []

        def effect(_: Any) -> Told:
            pause.status, pause.by = "revoked", by
            return self._told(work, UPDATED)

        return effect

    # Tools.

    def begin(self, frame_id: str, tool_id: str | None, intent: bool) -> Effect:
        work = self.find(frame_id)
        if work.status == "suspended":
            raise No(errors.InvalidTransition, frame=frame_id, status="suspended")
        known = work.tools.get(tool_id or "")
        seen = self.tools_seen.setdefault(work.root.id, set())
        if known is not None and known.status != "intent":
            raise No(errors.InvalidTransition, tool=tool_id, status=known.status)
        if known is None or not intent:
            self._in_time(work)
        if known is None:
            most = [one.calls_max for one in work.above() if one.calls_max is not None]
            if most and work.calls >= min(most):
                raise No(errors.ToolLimitExceeded, calls=work.calls, calls_max=min(most))
            if tool_id in seen:
                raise No(errors.InvalidTransition, tool=tool_id)

        def effect(tool: Any) -> Told:
            if known is not None and intent:
                return []
            seen.add(tool.tool_id)
            if known is None:
                work.tools[tool.tool_id] = Tool(tool.name, "intent" if intent else "started")
                work.calls += 1
            else:
                known.status = "started"
            return self._told(work, UPDATED)

        return effect

    def _tool(self, frame_id: str, tool_id: str) -> tuple[Work, Tool]:
        work = self.find(frame_id)
        if tool_id not in work.tools:
            raise No(errors.ToolNotFound, frame=frame_id, tool=tool_id)
        return work, work.tools[tool_id]

    def end(self, frame_id: str, tool_id: str) -> Effect:
        work, _ = self._tool(frame_id, tool_id)

        def effect(_: Any) -> Told:
            del work.tools[tool_id]
            return self._told(work, UPDATED)

        return effect

    def retry(self, frame_id: str, tool_id: str) -> Effect:
        work, tool = self._tool(frame_id, tool_id)
        if work.status == "suspended":
            raise No(errors.InvalidTransition, frame=frame_id, status="suspended")

        def effect(_: Any) -> Told:
            tool.attempt += tool.status != "intent"
            tool.status = "started"
            return self._told(work, UPDATED)

        return effect

    # Actors and time.

    def mine(self, actor: str, session: str | None) -> list[Work]:
        """The open frames of a scope, the deepest first, then the newest."""
        found = [work for work in self.open.values() if work.actor == actor and session in (None, work.session)]
        return sorted(found, key=lambda w: (w.depth, w.created, w.id), reverse=True)

    def come_back(self, actor: str, session: str | None) -> Told:
        rows = self.mine(actor, session)
        running = [w for w in rows if any(t.status == "started" for t in w.tools.values())]
        roots = {w.root.id: w for w in reversed([*rows[:1], *running])}
        told = Told()
        for work in roots.values():
            told += self._told(work, "actor.resumed")
        for work in running:
            for tool in work.tools.values():
                tool.status = "unknown" if tool.status == "started" else tool.status
        return told

    def pending(self, frames: list[Work]) -> list[tuple[str, str, str, str]]:
        """What waits in frames: frame, kind, words, and what names it."""
        found: list[tuple[str, str, str, str]] = []
        for one in frames:
            if one.status == "waiting":
                found.append((one.id, "waiting_for_subcall", f"Frame '{one.goal}' waiting", ""))
            if one.pause is not None:
                said = f"Frame '{one.goal}' suspended: why"
                said += "" if one.pause.status == "waiting" else f" ({one.pause.status})"
                found.append((one.id, "waiting_for_user", said, one.pause.id))
            for tool_id, tool in one.tools.items():
                said = f"Tool '{tool.name}' incomplete"
                found.append((one.id, "tool_in_progress", said, tool_id))
            for child in one.failures:
                said = f"Child '{child}' of frame '{one.goal}' failed"
                found.append((one.id, "unhandled_error", said, child))
        return found

    def expire(self) -> Told:
        told = Told()
        for work in list(self.open.values()):
            if work.id not in self.open:
                continue
            deadline = work.deadline()
            if deadline is not None and deadline <= self.now:
                told += self.close(work, "failed")
            elif work.pause and work.pause.status == "waiting" and work.pause.over(self.now):
                work.pause.status = "expired"
                told += self._told(work, UPDATED)
        return told
