"""Frames beside their model: every verb is done to both, and after every step both must agree.

Held at every look: the tokens of a frame add up and none are promised twice; a status follows only on one
that the table allows it to follow on; an operation leaves exactly its events in the log, a refused or
repeated one none; and the rows by which frames are found say what the model says.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from limpet import Scope, StateIndex, errors, limits
from limpet.admin.log import Admin
from limpet.core.rules.frame_fold import TRANSITIONS
from limpet.core.values import ids
from limpet.core.values.frame_state import Frame, FrameStatus
from limpet.runtime import state_cache
from limpet.runtime.engine import Engine
from limpet.sessions.requests import Settings
from limpet.stores import port
from limpet.stores.volatile import VolatileStore
from limpet.wiring.store_opener import open_store
from tests.property.frame_model import Effect, No, Told, Work
from tests.property.frame_stops import FullModel

START_US = 1_800_000_000_000_000
TENANT = "ours"


class FrameWorld:
    """A store with frames, the model of what should be in it, and the checks that join them."""

    def __init__(self, seed: int, path: Path | None = None, cached_trees: int = 3) -> None:
        self.model = FullModel()
        self.model.now = START_US
        self._path = path
        self._cached = cached_trees
        self._random = random.Random(seed)
        self._store: port.Store = VolatileStore() if path is None else open_store(path)
        self._open()
        self.fed = 0
        self._looks = self.packs = 0
        self._seen: dict[str, str] = {}
        self._changed: set[str] = set()
        self.refusals = Counter[str]()

    def _open(self) -> None:
        self.factory = ids.Factory(now_us=lambda: self.model.now, random=self._random.randbytes)
        self.engine = Engine(self._store, factory=self.factory, cached_trees=self._cached)
        self.index = StateIndex(self.engine, Settings(tenant=TENANT), self.factory)
        self.stranger = StateIndex(self.engine, Settings(tenant="theirs"), self.factory)

    def reopen(self) -> None:
        """Go on with nothing remembered: on a file after closing it, in RAM with a new engine."""
        if self._path is not None:
            self.engine.close()
            self._store = open_store(self._path)
        self._open()

    def close(self) -> None:
        self.engine.close()

    def do(self, plan: Callable[[], Effect], act: Callable[[], Any]) -> Any:
        """Do something that the model has an opinion on; return the answer, None if it was refused."""
        try:
            effect = plan()
        except No as no:
            self.refused(no, act)
            return None
        answer = act()
        self.look(effect(answer))
        return answer

    def refused(self, no: No, act: Callable[[], Any]) -> None:
        error = caught(act)
        assert error is not None and type(error) is no.error, f"{error!r} instead of {no}"
        told = {name: error.facts.get(name) for name in no.facts}
        assert told == no.facts, f"{error!r} with {told} instead of {no.facts}"
        self.refusals[no.error.__name__] += 1
        self.look([])

    def look(self, told: Told, *, in_order: bool = True) -> None:
        """Compare what is new in the log with what must be, and then the trees that it is about."""
        news = self._store.feed(TENANT, after=self.fed, limit=limits.READ_CHUNK)
        assert [stored.position for stored in news] == [*range(self.fed + 1, self.fed + 1 + len(news))]
        found = [(wire_event(stored).frame_id, stored.kind) for stored in news]
        if in_order:
            assert found == told
        else:
            assert sorted(found) == sorted(told)
        self.fed += len(news)
        roots = {stored.stream.removeprefix(state_cache.TREE_STREAM_PREFIX) for stored in news}
        self._changed |= roots
        for frame_id, kind in told:
            if kind == "frame.popped":
                self._check_closed(self.model.closed[frame_id])
        # What is refused leaves the log as it was; whether the memory of a tree is, is asked now and then.
        self._looks += 1
        for root_id in roots or list(self.model.open)[: self._looks % 3 == 0]:
            self._check_tree(root_id)
        self._check_pauses({frame_id for frame_id, _ in told})
        if told:
            told_of = self.index.get_frame(told[0][0])
            assert told_of.open is (told_of.frame_id in self.model.open)
        if told:
            self._check_pack(told[0][0])

    def _check_tree(self, root_id: str) -> None:
        tree = self.engine.trees.current(TENANT, root_id)
        assert tree is not None
        root = self.model.open.get(root_id)
        works = {work.id: work for work in root.below()} if root else {}
        assert tree.frames.keys() == works.keys()
        for frame_id, frame in tree.frames.items():
            self._check_frame(frame, works[frame_id])
        row = self._store.find_projection(TENANT, state_cache.TREE_KIND, root_id)
        moments = [work.deadline() for work in works.values()]
        moments += [w.pause.expires for w in works.values() if w.pause and w.pause.status == "waiting"]
        alarm = min((moment for moment in moments if moment is not None), default=state_cache.NEVER_OVERDUE_US)
        lately = [self.model.closed[frame.frame_id] for frame in tree.closed]
        assert [*map(picture_of_frame, tree.closed)] == [*map(picture_of_work, lately)]
        terms = {f"actor:{work.actor}" for work in (*works.values(), *lately)}
        terms |= {f"session:{work.session}" for work in (*works.values(), *lately) if work.session}
        assert row is not None
        expected = ("open", alarm, terms) if root else ("closed", 0, set[str]())
        assert (row.status, row.time_us, set(row.terms)) == expected, (row, expected)

    def _check_frame(self, frame: Frame, work: Work) -> None:
        budget = frame.budget
        taken = budget.used + budget.reserved + budget.subcall_allocation
        assert budget.total + budget.overdrawn == taken + budget.available()
        assert picture_of_frame(frame) == picture_of_work(work)
        self._check_transition(frame.frame_id, str(frame.status))
        tells = frame.frame_id.rpartition(".")[0] == frame.root_id
        named = frame.parent_frame_id is not None and not tells
        row = self._store.find_projection(TENANT, state_cache.FRAME_KIND, frame.frame_id)
        assert (row and (row.owner, row.status)) == ((work.actor, "open") if named else None)

    def _check_pack(self, frame_id: str) -> None:
        """Whatever a frame holds, its pack fits, and what is critical is in it."""
        work = self.model.open.get(frame_id) or next(iter(self.model.open.values()), None)
        if work is None:
            return
        budget = (500, 600, 4_000)[self._looks % 3]
        pack = self.index.assemble_context_pack(Scope(work.actor), frame_id=work.id, budget_tokens=budget, record=False)
        assert pack.token_summary.used <= budget and not pack.token_summary.overflow
        inside = {segment.handle_id for segment in pack.segments}
        critical = [id_ for id_, handle in work.handles.items() if handle.priority == 100]
        assert inside.issuperset(critical), f"{critical} are not all among {inside}"
        self.packs += 1

    def _check_closed(self, work: Work) -> None:
        frame = self.engine.trees.find_frame(TENANT, work.id)
        assert frame is not None
        assert picture_of_frame(frame) == picture_of_work(work)
        assert frame.completed_us is not None
        self._check_transition(work.id, work.status)
        tree = self.engine.trees.current(TENANT, frame.root_id)
        assert tree is not None
        if tree.closed_frame(work.id) is None or tree.moves_closed_frames:
            row = self._store.find_projection(TENANT, state_cache.FRAME_KIND, work.id)
            assert row is not None and (row.owner, row.status) == (work.actor, work.status)

    def _check_transition(self, frame_id: str, status: str) -> None:
        before = self._seen.get(frame_id)
        if before is None:
            assert status in ("active", "waiting", "suspended")
        elif before != status:
            allowed = TRANSITIONS[FrameStatus(before)]
            assert status in allowed, f"{frame_id} became {status} from {before}"
        self._seen[frame_id] = status

    def _check_pauses(self, frame_ids: Iterable[str]) -> None:
        for frame_id in frame_ids:
            for pause in self.model.of_frame.get(frame_id, ())[-2:]:
                found = self.index.get_suspension(pause.id)
                assert (found.frame_id, found.status) == (frame_id, pause.status)
                assert (found.decided_by, found.expires_us) == (pause.by, pause.expires)
                assert found.token_hash == ""

    # Every so often.

    def check_lists(self, actor: str, session: str | None) -> None:
        """What is found by scope, and which suspensions wait."""
        scope = Scope(actor, session)
        mine = self.model.mine(actor, session)
        assert [f.frame_id for f in self.index.list_frames(scope, limit=1_000)] == [w.id for w in mine]
        every = self.index.list_frames(scope, open_only=False, limit=100_000)[len(mine) :]
        assert every == sorted(every, key=lambda f: (f.created_us, f.frame_id), reverse=True)
        closed = [
            work.id for work in self.model.closed.values() if work.actor == actor and session in (None, work.session)
        ]
        assert sorted(frame.frame_id for frame in every) == sorted(closed)
        parents = {work.parent.id for work in mine if work.parent}
        leaves = [work.id for work in mine if work.id not in parents]
        assert [frame.frame_id for frame in self.index.leaves(scope)] == leaves
        top = self.index.find_top_of_stack(scope)
        assert (top.frame_id if top else None) == (leaves[0] if leaves else None)
        waiting = {one.suspension_id for one in self.index.list_suspensions(limit=10_000)}
        now, pauses = self.model.now, self.model.pauses.values()
        assert waiting == {p.id for p in pauses if p.status == "waiting" and not p.over(now)}

    def check_derived(self, *, whole: bool = False) -> None:
        """All that is kept beside the log is what the log alone leads to: rows, claims, blobs."""
        roots = set(self.model.touched) if whole else self._changed
        rows = 0
        for root_id in roots:
            stream = state_cache.tree_stream(root_id)
            made = state_cache.derive_stream(stream, iter(self._events(stream)), self._blobs)
            for row in made.projections:
                assert self._store.find_projection(TENANT, row.kind, row.id) == row
            for claim, version in made.claims:
                assert self._store.find_claim(TENANT, stream, claim) == version
            rows += len(made.projections)
        self._changed = set()
        if whole:
            assert rows == len(self._all_rows())
            for work in self.model.closed.values():
                frame = self.engine.trees.find_frame(TENANT, work.id)
                assert frame is not None and picture_of_frame(frame) == picture_of_work(work)

    def check_rebuilt(self) -> None:
        """Dropped and made again from the log, all is as it was, and known to those who are there."""
        before = self._all_rows()
        Admin(self.engine).rebuild()
        assert self._all_rows() == before
        for root_id in {work.root.id for work in self.model.open.values()}:
            self._check_tree(root_id)

    def _all_rows(self) -> list[port.Projection]:
        kinds = (state_cache.FRAME_KIND, state_cache.TREE_KIND, state_cache.SUSPENSION_KIND)
        queries = [port.Query(kind=kind) for kind in kinds]
        return [row for query in queries for row in state_cache.iter_rows(self.engine.store, TENANT, query)]

    def _events(self, stream: str) -> list[port.StoredEvent]:
        found: list[port.StoredEvent] = []
        while page := self._store.read(TENANT, stream, after=len(found)):
            found += page
        return found

    def _blobs(self, hashes: Any) -> dict[bytes, bytes]:
        return self._store.blobs(TENANT, hashes)


def caught(act: Callable[[], Any]) -> errors.Error | None:
    try:
        act()
    except errors.Error as error:
        return error
    return None


def wire_event(stored: port.StoredEvent) -> Any:
    return state_cache.decode_tree_event(stored).event


def plain(value: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value))


def picture_of_frame(frame: Frame) -> dict[str, Any]:
    """A frame as the model would draw it."""
    pause = frame.suspension
    return {
        "id": frame.frame_id,
        "parent": frame.parent_frame_id,
        "root": frame.root_id,
        "scope": (frame.scope.actor_id, frame.scope.session_id),
        "status": str(frame.status),
        "goal": frame.goal,
        "inputs": plain(frame.inputs),
        "depth": frame.depth,
        "account": (frame.budget.total, frame.budget.used, frame.budget.reserved),
        "given": frame.budget.subcall_allocation,
        "free": frame.budget.available(),
        "spent": frame.spent,
        "aside": dict(frame.reservations),
        "handles": [handle.handle_id for handle in frame.context_handles],
        "results": [result.ref_id for result in frame.result_refs],
        "tools": [(t.tool_id, t.name, str(t.status), t.attempt) for t in frame.tools],
        "calls": frame.tool_calls,
        "children": list(frame.children),
        "failures": list(frame.failures) if frame.open else None,
        "created": frame.created_us,
        "deadline": frame.deadline_us if frame.open and frame.stood_us is None else None,
        "pause": pause and (pause.suspension_id, str(pause.status), str(pause.previous), plain(pause.payload)),
    }


def picture_of_work(work: Work) -> dict[str, Any]:
    pause, going = work.pause, work.status not in ("completed", "failed", "cancelled")
    return {
        "id": work.id,
        "parent": work.parent.id if work.parent else None,
        "root": work.root.id,
        "scope": (work.actor, work.session),
        "status": work.status,
        "goal": work.goal,
        "inputs": work.inputs,
        "depth": work.depth,
        "account": (work.total, work.used, sum(work.aside.values())),
        "given": work.given,
        "free": work.free,
        "spent": work.spent,
        "aside": work.aside,
        "handles": list(work.handles),
        "results": work.results,
        "tools": [(id_, tool.name, tool.status, tool.attempt) for id_, tool in work.tools.items()],
        "calls": work.calls,
        "children": [child.id for child in work.children],
        "failures": work.failures if going else None,
        "created": work.created,
        "deadline": work.deadline() if going else None,
        "pause": pause and (pause.id, pause.status, pause.previous, pause.payload),
    }
