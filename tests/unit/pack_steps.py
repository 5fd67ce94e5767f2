"""Frames and counters for tests of packs. A token is a § in a text, so that sizes can be chosen exactly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from limpet import Message, errors
from limpet.core.values.context import CompactionLevel, ContextHandle, ContextPriority, HandleType, handle_pages
from limpet.core.values.frame_state import Frame, FrameStatus, Scope, TokenBudget
from limpet.core.windows import pack_assembly
from limpet.core.windows import window as windows
from limpet.core.windows.pack import BriefContext, ContextPack, ConversationMoment
from limpet.core.windows.pack_assembly import HandleContent, PackInput
from limpet.core.windows.summary import message_text
from limpet.core.windows.window import CounterInfo, WindowMessage

SCOPE = Scope("planner", "trip")
COUNTED = CounterInfo("marks", overhead=50)


def marks(number: int) -> str:
    """A text of so many tokens that says nothing else."""
    return "§" * number


def count(message: Message) -> int:
    return message_text(message).count("§")


def handle(name: str, tokens: int, priority: str = "medium", **fields: object) -> ContextHandle:
    """A handle with content of so many tokens, which it also says that it has."""
    given: dict[str, object] = {
        "handle_id": name, "handle_type": HandleType.DOCUMENT, "priority": priority,
        "estimated_tokens": tokens, "content": f"{name} {marks(tokens)}",
    }  # fmt: skip
    return ContextHandle(**(given | fields))  # pyright: ignore[reportArgumentType]


def stack(depth: int, handles: Sequence[ContextHandle] = (), goal: str = "a goal") -> tuple[Frame, ...]:
    """The frames from a root down; the last one has the handles."""
    return tuple(
        Frame(
            frame_id=f"f{at}",
            root_id="f0",
            scope=SCOPE,
            goal=f"{goal} {at}",
            budget=TokenBudget(100_000),
            parent_frame_id=f"f{at - 1}" if at else None,
            depth=at,
            status=FrameStatus.ACTIVE if at == depth - 1 else FrameStatus.WAITING,
            handle_pages=handle_pages(handles) if at == depth - 1 else (),
        )
        for at in range(depth)
    )


class Library:
    """Content by handles' ids; remembers what was asked for."""

    def __init__(self, texts: Mapping[str, str] | None = None) -> None:
        self._texts = texts or {}
        self.asked: list[str] = []

    def __call__(self, handles: Sequence[ContextHandle], must: bool) -> dict[str, HandleContent]:
        found: dict[str, HandleContent] = {}
        for one in handles:
            self.asked.append(one.handle_id)
            text = self._texts.get(one.handle_id, one.content)
            if text is None and must:
                raise errors.HandleUnresolved(facts={"why": "nobody has it"})
            found[one.handle_id] = HandleContent(text, "" if text is not None else "nobody has it")
        return found


def talk(*said: Message) -> tuple[windows.ContextItem, ...]:
    return tuple(windows.window_items([WindowMessage(at, m, count(m)) for at, m in enumerate(said, 1)]))


def wanted(
    budget: int,
    handles: Sequence[ContextHandle] = (),
    *,
    brief: int | BriefContext = 0,
    depth: int = 1,
    said: Sequence[Message] = (),
    goal: str = "a goal",
    **fields: object,
) -> PackInput:
    given: dict[str, object] = {
        "ancestry": stack(depth, handles, goal), "scope": SCOPE, "budget": budget,
        "brief": BriefContext(role="planner", system_prompt=marks(brief))
        if isinstance(brief, int)
        else brief,
        "assembled_at": "2026-01-31T12:00:00+00:00", "conversation": talk(*said),
        "conversation_moment": ConversationMoment("trip", len(said), 0) if said else None,
    }  # fmt: skip
    for name in ("include", "exclude"):
        if name in fields:
            fields[name] = frozenset(fields[name])  # pyright: ignore[reportArgumentType]
    return PackInput(**(given | fields))  # pyright: ignore[reportArgumentType]


def assemble(given: PackInput, library: Library | None = None) -> ContextPack:
    return pack_assembly.assemble(given, library or Library(), count=count, counted=COUNTED)


def shown(pack: ContextPack) -> list[str]:
    return [s.handle_id for s in pack.segments if s.handle_id is not None]


def level(pack: ContextPack) -> CompactionLevel:
    return pack.token_summary.compaction_level


PRIORITIES = [priority.label for priority in ContextPriority]
