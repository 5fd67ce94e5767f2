"""The agent loop from the outside: what is asked, delegated, refused and given up, with and without an index."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

import limpet
from demo.agent.loop import Agent
from demo.agent.parts import AwaitingDecision, Reply, Shown, Tool, Work, WorkFailed
from limpet import FrameStatus, Limpet, Scope, ToolCallRequest
from limpet.frames import PendingWorkType, ToolEffect
from tests.acceptance.cli import command_runs
from tests.faults.agent_processes import example

AGENT = example()
ROOT = Path(__file__).resolve().parents[3]
WORK = Work("work", "Do it.", "talk", budget=10_000)


@pytest.fixture
def lp() -> Iterator[Limpet]:
    with limpet.connect("volatile:") as engine:
        yield engine


def says(*replies: Reply) -> Callable[[Shown, Mapping[str, Tool]], Reply]:
    """A model that says one thing after another, by how often it has spoken."""

    def model(shown: Shown, _tools: Mapping[str, Tool]) -> Reply:
        return replies[sum(message.role == "assistant" for message in shown.messages)]

    return model


def calls(name: str, args: Mapping[str, Any], tokens: int = 100) -> Reply:
    return Reply("", [ToolCallRequest(name=name, args=args)], tokens)


def agent(lp: Limpet, model: Any, tools: Mapping[str, Tool], **more: Any) -> Agent:
    given: dict[str, Any] = {"sessions": lp.sessions, "index": lp.index, "actor": "me", "system": "Be brief."}
    return Agent(model=model, tools=tools, **(given | more))


class Shop:
    """A tool with effects, which remembers them."""

    def __init__(self) -> None:
        self.paid: list[tuple[int, str]] = []

    def pay(self, amount: int, *, key: str) -> str:
        self.paid.append((amount, key))
        return f"paid {amount}"

    def tools(self, effect: ToolEffect = ToolEffect.DESTRUCTIVE) -> dict[str, Tool]:
        return {"pay": Tool(self.pay, effect)}


def results(lp: Limpet, session_id: str = "talk") -> list[tuple[Any, bool]]:
    talk = lp.sessions.get_session(session_id)
    return [(r.result, r.is_error) for m in talk.messages for r in m.tool_results]


@pytest.mark.req("C-14")
@pytest.mark.parametrize(
    ("decision", "more", "paid", "told"),
    [
        ("approve", {}, [120], ("paid 120", False)),
        ("edit", {"payload": {"amount": 80}}, [80], ("paid 80", False)),
        ("reject", {"reason": "too dear"}, [], ("Not done: rejected by ada. too dear", True)),
    ],
)
def test_decision_of_somebody_else(lp: Limpet, decision: str, more: Any, paid: list[int], told: tuple[str, bool]):
    """Nothing runs before; edited arguments are used; a refusal is told to the model."""
    shop = Shop()
    payer = agent(lp, says(calls("pay", {"amount": 120}), Reply("Done.")), shop.tools())
    with pytest.raises(AwaitingDecision):
        payer.run(WORK)
    with pytest.raises(AwaitingDecision) as waiting:  # asked again, it is the same question
        payer.run(WORK)
    assert shop.paid == [] and len(lp.index.list_suspensions(waiting=False)) == 1
    asked = waiting.value.suspension
    assert asked.payload == {"amount": 120} and asked.purpose.startswith("pay@")
    lp.index.decide_suspension(asked.suspension_id, decision, by="ada", **more)
    assert payer.run(WORK) == "Done."
    assert [amount for amount, _ in shop.paid] == paid
    assert results(lp) == [told]


@pytest.mark.req("C-14")
def test_a_yes_is_for_one_call(lp: Limpet):
    """The second call of the same tool is asked about anew."""
    shop = Shop()
    replies = (calls("pay", {"amount": 1}), calls("pay", {"amount": 2}), Reply("Done."))
    payer = agent(lp, says(*replies), shop.tools())
    for number in (1, 2):
        with pytest.raises(AwaitingDecision) as waiting:
            payer.run(WORK)
        assert waiting.value.suspension.payload == {"amount": number}
        lp.index.decide_suspension(waiting.value.suspension.suspension_id, "approve", by="ada")
    assert payer.run(WORK) == "Done."
    assert [amount for amount, _ in shop.paid] == [1, 2]


@pytest.mark.req("C-14")
@pytest.mark.parametrize("what", ["an outside call", "a checkpoint"])
def test_other_uses_of_a_suspension(tmp_path: Path, what: str):
    """Whoever has the token goes on later, in another process, where the work was; with an answer or without."""
    with limpet.connect(tmp_path / "state.db") as lp:
        lp.index.push_frame(Scope("me"), goal="wait", budget=1_000, frame_id="work")
        lp.index.record_usage("work", 300)
        token = lp.index.suspend_frame("work", reason=what)
    program = (
        "import sys, limpet\n"
        "with limpet.connect('state.db') as lp:\n"
        "    answer = {'payload': {'status': 200}} if sys.argv[2] == 'an outside call' else {}\n"
        "    lp.index.resume_frame(sys.argv[1], **answer)\n"
    )
    command = [sys.executable, "-c", program, token.token_id, what]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=300)
    with limpet.connect(tmp_path / "state.db") as lp:
        frame = lp.index.get_frame("work")
        assert frame.status is FrameStatus.ACTIVE and frame.budget.available() == 700
        assert frame.resumption is not None
        told = {"status": 200} if what == "an outside call" else None
        assert frame.resumption.payload == told


def test_a_question_that_was_revoked_is_asked_anew(lp: Limpet):
    shop = Shop()
    payer = agent(lp, says(calls("pay", {"amount": 1}), Reply("Done.")), shop.tools())
    with pytest.raises(AwaitingDecision) as first:
        payer.run(WORK)
    lp.index.revoke_suspension(first.value.suspension.suspension_id)
    with pytest.raises(AwaitingDecision) as second:
        payer.run(WORK)
    assert second.value.suspension.suspension_id != first.value.suspension.suspension_id
    lp.index.decide_suspension(second.value.suspension.suspension_id, "approve", by="ada")
    assert payer.run(WORK) == "Done."


@pytest.mark.req("C-29")
def test_seven_points(lp: Limpet):
    """Resumed on start, pushed, shown no more than fits, handles after tools, popped, charged."""
    shop = Shop()
    shown: list[int] = []

    def model(given: Shown, tools: Mapping[str, Tool]) -> Reply:
        frame = lp.index.get_frame("work")
        shown.append(len(given.messages))
        assert frame.status is FrameStatus.ACTIVE and set(tools) == {"pay"}
        assert [h.description for h in frame.context_handles] == ["what pay gave"] * len(shop.paid)
        return says(calls("pay", {"amount": 1}), Reply("Done.", tokens=50))(given, tools)

    assert agent(lp, model, shop.tools(ToolEffect.IDEMPOTENT)).run(WORK) == "Done."
    frame = lp.index.get_frame("work")
    assert (frame.status, frame.result_summary) == (FrameStatus.COMPLETED, "Done.")
    assert frame.budget.used == 150 and len(shown) == 2
    assert lp.index.resume_actor(Scope("me")).current_frame is None


@pytest.mark.req("C-29")
def test_work_that_is_through_is_not_done_again(lp: Limpet):
    shop = Shop()
    payer = agent(lp, says(calls("pay", {"amount": 1}), Reply("Done.")), shop.tools(ToolEffect.IDEMPOTENT))
    assert [payer.run(WORK) for _ in range(3)] == ["Done."] * 3
    assert len(shop.paid) == 1
    assert lp.sessions.get_session("talk").message_count == 5


@pytest.mark.req("C-29")
def test_failed_child_is_dealt_with(lp: Limpet):
    """A helper whose tokens run out fails; the parent's model is told, and nothing is left unhandled."""
    shop = Shop()
    spends = says(*(calls("pay", {"amount": n}, tokens=600) for n in range(5)))
    helper = agent(lp, spends, shop.tools(ToolEffect.PURE), actor="helper")
    replies = (calls("delegate", {"goal": "Pay", "budget": 1_500}), Reply("Never mind.", tokens=10))
    boss = agent(lp, says(*replies), {}, worker=helper)
    assert boss.run(WORK) == "Never mind."
    ((told, is_error),) = results(lp)
    assert is_error and "tokens" in told
    (child,) = lp.index.list_frames(Scope("helper"), open_only=False)
    assert child.status is FrameStatus.FAILED and child.budget.used == 1_200
    root = lp.index.get_frame("work")
    assert root.budget.used == 110 + 1_200 and root.budget.subcall_allocation == 0
    assert lp.sessions.get_session(str(child.scope.session_id)).pending_calls() == []


def test_failed_child_is_still_known_after_a_crash(lp: Limpet):
    """Stopped between the child's end and the next turn, the failure is pending work, and then dealt with."""

    class Crash(Exception):
        pass

    helper = agent(lp, says(calls("nothing", {}, tokens=1_200)), {}, actor="helper")
    replies = (calls("delegate", {"goal": "Pay", "budget": 1_500}), Reply("Never mind."))
    boss = agent(lp, says(*replies), {}, worker=helper)

    def crash(session: limpet.Session) -> None:
        if session.id == "talk" and session.messages[-1].role == "tool":
            raise Crash

    with pytest.raises(Crash):
        dataclasses.replace(boss, watch=crash).run(WORK)
    kinds = [work.work_type for work in lp.index.resume_actor(Scope("me")).pending_work]
    assert kinds == [PendingWorkType.UNHANDLED_ERROR]
    seen: list[int] = []

    def model(shown: Shown, tools: Mapping[str, Tool]) -> Reply:
        seen.append(len(lp.index.get_frame("work").failures))
        return boss.model(shown, tools)

    assert dataclasses.replace(boss, model=model).run(WORK) == "Never mind."
    assert seen == [0]


def test_more_than_there_is_can_not_be_delegated(lp: Limpet):
    helper = agent(lp, says(Reply("Yes.")), {}, actor="helper")
    replies = (calls("delegate", {"goal": "Pay", "budget": 99_000}), Reply("Alone, then."))
    assert agent(lp, says(*replies), {}, worker=helper).run(WORK) == "Alone, then."
    assert "99,000 tokens are asked for" in results(lp)[0][0]


def test_work_without_tokens_is_given_up(lp: Limpet):
    shop = Shop()
    payer = agent(lp, says(calls("pay", {"amount": 1}, tokens=9_800)), shop.tools(ToolEffect.PURE))
    for _ in range(2):  # and stays given up
        with pytest.raises(WorkFailed, match="tokens"):
            payer.run(WORK)
    assert lp.index.get_frame("work").status is FrameStatus.FAILED
    assert len(shop.paid) == 1


@pytest.mark.parametrize("frames", [True, False])
def test_wrong_calls_are_told_to_the_model(lp: Limpet, frames: bool):
    shop = Shop()
    replies = (calls("fly", {}), calls("pay", {"price": 3}), Reply("I see."))
    index = lp.index if frames else None
    tools = shop.tools(ToolEffect.PURE)
    assert agent(lp, says(*replies), tools, index=index).run(WORK) == "I see."
    (missing, first), (wrong, second) = results(lp)
    assert first and second and shop.paid == []
    assert missing == "There is no tool 'fly'." and "price" in wrong


@pytest.mark.req("C-29")
def test_index_is_optional(lp: Limpet):
    """On a session alone: no frame is ever made, and what needs a yes is refused."""
    shop = Shop()
    payer = agent(lp, says(calls("pay", {"amount": 1}), Reply("No.")), shop.tools(), index=None)
    assert payer.run(WORK) == "No."
    assert shop.paid == [] and results(lp)[0][1]
    assert lp.index.list_frames(open_only=False) == []


class Endpoint(BaseHTTPRequestHandler):
    """An OpenAI-compatible endpoint, whose model is the script of the example."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        names = {call["id"]: call["function"]["name"] for m in asked["messages"] for call in m.get("tool_calls") or ()}  # fmt: skip
        given: dict[str, list[tuple[str, bool]]] = {}
        for message in asked["messages"]:
            if message["role"] == "tool":
                given.setdefault(names[message["tool_call_id"]], []).append((message["content"], False))  # fmt: skip
        offered = {tool["function"]["name"] for tool in asked["tools"]}
        reply = (AGENT.planner if "delegate" in offered else AGENT.helper)(given)
        said = {"role": "assistant", "content": reply.text or None}
        if reply.calls:
            said["tool_calls"] = [self._call(call) for call in reply.calls]
        reason = "tool_calls" if reply.calls else "stop"
        choice = {"index": 0, "finish_reason": reason, "message": said}
        usage = {"prompt_tokens": 70, "completion_tokens": 7, "total_tokens": 77}
        self._answer(
            {"id": "x", "object": "chat.completion", "created": 0, "model": asked["model"], "choices": [choice], "usage": usage}
        )  # fmt: skip

    def _call(self, call: ToolCallRequest) -> dict[str, Any]:
        function = {"name": call.name, "arguments": json.dumps(dict(call.args))}
        return {"id": call.id, "type": "function", "function": function}

    def _answer(self, document: Mapping[str, Any]) -> None:
        body = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
        pass


def run(folder: Path, *arguments: str, env: Mapping[str, str] | None = None) -> tuple[int, str]:
    command: Sequence[str] = [sys.executable, str(ROOT / "examples/agent.py"), *arguments]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.stderr == ""
    return done.returncode, done.stdout


def test_openai_compatible_endpoint(tmp_path: Path):
    """Messages, tools and usage go over a wire to somebody else's model and back."""
    server = HTTPServer(("127.0.0.1", 0), Endpoint)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    env = {"OPENAI_BASE_URL": f"http://127.0.0.1:{server.server_port}/v1", "OPENAI_API_KEY": "-"}
    try:
        code, told = run(tmp_path, "--model", "any", "--approve", "Plan a trip to Oslo", env=env)
    finally:
        server.shutdown()
        server.server_close()
    assert (code, told) == (0, "Oslo is planned: SK4455 is booked. Stay at Hotel Bristol.\n")
    with limpet.connect(tmp_path / "state.db") as lp:
        root = lp.index.get_frame(AGENT.work_on("Plan a trip to Oslo").id)
        assert root.budget.used == 77 * 5


@pytest.mark.req("C-14", "C-29")
def test_example_waits_for_a_yes(tmp_path: Path):
    """It ends with a code of its own and says what to type; once decided, running it again goes on."""
    asks, told = run(tmp_path, "Plan a trip to Oslo")
    assert asks == AGENT.WAITS
    with limpet.connect(tmp_path / "state.db") as lp:
        (asked,) = lp.index.list_suspensions()
        assert f"limpet suspensions approve {asked.suspension_id} --url state.db" in told
        assert not (tmp_path / "trips/bookings.jsonl").exists()
    line = next(line for line in told.splitlines() if line.startswith("  limpet "))
    assert command_runs.run(*line.split()[1:], "--yes", cwd=tmp_path).code == 0
    done, told = run(tmp_path, "Plan a trip to Oslo")
    assert (done, told) == (0, "Oslo is planned: SK4455 is booked. Stay at Hotel Bristol.\n")
    assert len((tmp_path / "trips/bookings.jsonl").read_text().splitlines()) == 1
