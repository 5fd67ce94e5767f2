"""Suspensions from the outside: the right to resume, who decides, what expires, and what is left of each."""

from __future__ import annotations

import base64

import pytest

from limpet import Limpet, Scope, errors
from limpet.runtime import state_cache
from limpet.stores import port
from tests.acceptance.conversation_steps import engine_of, set_clock

SCOPE = Scope("planner")
START_US, SECOND = 1_900_000_000_000_000, 1_000_000


def kinds(lp: Limpet) -> list[str]:
    return [fact.event.kind for fact in lp.events.feed()]


@pytest.mark.req("C-15")
def test_an_expired_suspension_that_is_followed_by_another_waits_no_more(lp: Limpet):
    set_clock(lp, START_US)
    frame = lp.index.push_frame(SCOPE, goal="g", budget=10)
    first = lp.index.suspend_frame(frame.frame_id, reason="approval", expires_in_s=5)
    set_clock(lp, START_US + 6 * SECOND)
    second = lp.index.suspend_frame(frame.frame_id, reason="approval")
    assert lp.index.get_suspension(first.suspension_id).status == "expired"
    assert [one.suspension_id for one in lp.index.list_suspensions()] == [second.suspension_id]
    with pytest.raises(errors.AlreadyDecided) as caught:
        lp.index.decide_suspension(first.suspension_id, "approve", by="ann")
    assert caught.value.facts["status"] == "expired"
    assert lp.index.resume_frame(second).status == "active"


@pytest.mark.req("C-18")
def test_the_row_of_a_suspension_is_what_the_log_says_after_a_cascade(lp: Limpet):
    """Its frame waited for a child, and both are closed in one step."""
    frame = lp.index.push_frame(SCOPE, goal="g", budget=10)
    lp.index.push_frame(SCOPE, goal="child", budget=5, parent_frame_id=frame.frame_id)
    lp.index.suspend_frame(frame.frame_id, reason="approval")
    lp.index.pop_frame(frame.frame_id, "cancelled", cascade=True)  # pyright: ignore[reportArgumentType]
    store = engine_of(lp).store
    stream = state_cache.tree_stream(frame.frame_id)
    log = store.read("default", stream)
    made = state_cache.derive_stream(stream, iter(log), lambda hashes: store.blobs("default", hashes))
    assert made.projections
    for row in made.projections:
        assert store.find_projection("default", row.kind, row.id) == row


@pytest.mark.req("C-28")
def test_a_repeated_suspension_leaves_the_token_of_a_later_one_alone(lp: Limpet):
    frame = lp.index.push_frame(SCOPE, goal="g", budget=10)
    first = lp.index.suspend_frame(frame.frame_id, reason="approval", key="one")
    lp.index.resume_frame(first)
    second = lp.index.suspend_frame(frame.frame_id, reason="another", key="two")
    before = kinds(lp)
    with pytest.raises(errors.AlreadyDecided):
        lp.index.suspend_frame(frame.frame_id, reason="approval", key="one")
    assert kinds(lp) == before
    assert lp.index.resume_frame(second).status == "active"


@pytest.mark.req("C-28")
def test_a_repeated_suspension_hands_out_a_token_anew(lp: Limpet):
    frame = lp.index.push_frame(SCOPE, goal="g", budget=10)
    lost = lp.index.suspend_frame(frame.frame_id, reason="approval", key="one")
    again = lp.index.suspend_frame(frame.frame_id, reason="approval", key="one")
    assert again.suspension_id == lost.suspension_id
    with pytest.raises(errors.InvalidSuspensionToken):
        lp.index.resume_frame(lost)
    assert lp.index.resume_frame(again).status == "active"
    assert kinds(lp) == ["frame.pushed", "frame.suspended", "frame.updated", "frame.resumed"]


@pytest.mark.req("C-24", "C-28")
def test_an_actor_that_comes_back_leaves_one_event_a_tree(lp: Limpet):
    """However many of its frames there have tools that had begun."""
    root = lp.index.push_frame(SCOPE, goal="g", budget=10)
    child = lp.index.push_frame(SCOPE, goal="c", budget=5, parent_frame_id=root.frame_id)
    tools = [lp.index.begin_tool(one.frame_id, "mail").tool_id for one in (root, child)]
    other = lp.index.push_frame(SCOPE, goal="other", budget=5)
    tools.append(lp.index.begin_tool(other.frame_id, "mail").tool_id)
    state = lp.index.resume_actor(SCOPE)
    assert kinds(lp).count("actor.resumed") == 2
    pending = {work.ref_id: work.tool and work.tool.status for work in state.pending_work}
    assert {pending[tool] for tool in tools} == {"unknown"}


@pytest.mark.req("C-13", "C-20")
def test_a_token_has_256_random_bits_and_only_its_hash_is_kept(lp: Limpet):
    frame = lp.index.push_frame(SCOPE, goal="g", budget=10)
    secrets: set[str] = set()
    for _ in range(50):
        token = lp.index.suspend_frame(frame.frame_id, reason="approval")
        secret = token.token_id.removeprefix(f"{token.suspension_id}.")
        assert len(base64.urlsafe_b64decode(f"{secret}=")) == 32
        assert secret not in repr(token) and secret not in repr(lp.index.get_frame(frame.frame_id))
        secrets.add(secret)
        lp.index.resume_frame(token)
    assert len(secrets) == 50
    store = engine_of(lp).store
    kept = [stored.payload or b"" for stored in store.feed("default", limit=1_000)]
    rows = store.query_projections("default", port.Query(kind=state_cache.SUSPENSION_KIND, limit=1_000))
    kept += [row.document for row in rows]
    assert not any(secret.encode() in one for secret in secrets for one in kept)
