"""Messages out: what becomes of each kind of part, result and id for each provider."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

import limpet.render
from limpet import Message, ToolCallRequest, ToolCallResult, errors
from limpet.core.formats import content_parts, intake
from limpet.testing import providers

render: Any = limpet.render
"""The renderers without the types of the clients: these tests look into requests as plain dicts."""

DATA = "aGVsbG8="
URL = "https://example.com/a.png"
CHAT_URL = {"type": "image_url", "image_url": {"url": URL}}
CHAT_PNG = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{DATA}"}}
CHAT_WAV = {"type": "input_audio", "input_audio": {"data": DATA, "format": "wav"}}
CHAT_PDF = {"type": "file", "file": {"filename": "a.pdf", "file_data": f"data:application/pdf;base64,{DATA}"}}
CLAUDE_URL = {"type": "image", "source": {"type": "url", "url": URL}}
CLAUDE_PNG = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": DATA}}
CLAUDE_PDF = {
    "type": "document",
    "source": {"type": "base64", "media_type": "application/pdf", "data": DATA},
    "title": "a.pdf",
}
GEMINI_PNG = {"inline_data": {"mime_type": "image/png", "data": DATA}}
GEMINI_WAV = {"inline_data": {"mime_type": "audio/wav", "data": DATA}}
GEMINI_PDF = {"inline_data": {"mime_type": "application/pdf", "data": DATA}}
INPUT_PNG = {"type": "input_image", "image_url": f"data:image/png;base64,{DATA}", "detail": "auto"}
SIGNED = {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}
REASONING = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"}
THOUGHT = {"text": "Hm.", "thought": True, "thought_signature": DATA}


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def user(*parts: Any) -> Message:
    return Message("user", list(parts))


def calling(*ids: str, said: Any = None, name: str = "f") -> Message:
    return Message("assistant", said, tool_calls=[ToolCallRequest(id_, name) for id_ in ids])


def told(id_: str, result: Any = "42", *, failed: bool = False) -> Message:
    return Message("tool", tool_results=[ToolCallResult(id_, result, failed)])


def chat_part(part: Any) -> Any:
    return render.to_chat([user(part)])[0]["content"][0]


def responses_part(part: Any) -> Any:
    return render.to_responses([user(part)])["input"][0]["content"][0]


def anthropic_part(part: Any) -> Any:
    return render.to_anthropic([user(part)])["messages"][0]["content"][0]


def gemini_part(part: Any) -> Any:
    return render.to_gemini([user(part)])["contents"][0]["parts"][0]


@pytest.mark.parametrize(
    ("given", "to", "expected"),
    [
        (CHAT_PNG, chat_part, CHAT_PNG),
        (CHAT_PNG, anthropic_part, CLAUDE_PNG),
        (CHAT_PNG, gemini_part, GEMINI_PNG),
        (CHAT_PNG, responses_part, INPUT_PNG),
        (CLAUDE_PNG, chat_part, CHAT_PNG),
        (CLAUDE_PNG, anthropic_part, CLAUDE_PNG),
        (GEMINI_PNG, gemini_part, GEMINI_PNG),
        (GEMINI_PNG, anthropic_part, CLAUDE_PNG),
        (INPUT_PNG, chat_part, CHAT_PNG),
        (INPUT_PNG, responses_part, INPUT_PNG),
        (CHAT_URL, anthropic_part, CLAUDE_URL),
        (CLAUDE_URL, chat_part, CHAT_URL),
        (CHAT_URL, gemini_part, {"file_data": {"mime_type": "image/png", "file_uri": URL}}),
        (CHAT_PDF, anthropic_part, CLAUDE_PDF),
        (CLAUDE_PDF, chat_part, CHAT_PDF),
        (CHAT_PDF, gemini_part, GEMINI_PDF),
        (CHAT_WAV, gemini_part, GEMINI_WAV),
        (GEMINI_WAV, chat_part, CHAT_WAV),
        (CHAT_WAV, anthropic_part, text("[audio: not shown]")),
        (CHAT_WAV, responses_part, {"type": "input_text", "text": "[audio: not shown]"}),
        ({"type": "file", "file": {"file_id": "file-1"}}, anthropic_part, text("[file file-1: not shown]")),
        ({"type": "hologram", "x": 1}, chat_part, text("[hologram: not shown]")),
        ({"type": "hologram", "x": 1}, gemini_part, {"text": "[hologram: not shown]"}),
        ({"type": "image_url", "image_url": {"url": "data:image/svg+xml,%3Csvg/%3E"}}, anthropic_part, text("[image: not shown]")),
        ({"free": "form"}, chat_part, text('{"free":"form"}')),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)[:40]),
)  # fmt: skip
def test_parts_are_translated_or_mentioned(given: Any, to: Callable[[Any], Any], expected: Any):
    assert to(given) == expected


def test_a_text_file_becomes_text():
    url = f"data:text/plain;base64,{DATA}"
    given = {"type": "file", "file": {"file_data": url, "filename": "a.txt"}}
    assert gemini_part(given) == {"text": "hello"}
    source = {"type": "text", "media_type": "text/plain", "data": "hello"}
    assert anthropic_part(given) == {"type": "document", "source": source, "title": "a.txt"}
    assert chat_part({"type": "document", "source": source}) == text("hello")


def test_reasoning_goes_back_to_its_own_provider_only():
    messages = [user(text("q")), Message("assistant", [SIGNED, REASONING, THOUGHT, text("a")])]
    assert render.to_chat(messages)[1]["content"] == [text("a")]
    assert render.to_responses(messages)["input"][1:] == [REASONING, {"role": "assistant", "content": "a"}]
    assert render.to_anthropic(messages)["messages"][1]["content"] == [SIGNED, text("a")]
    assert render.to_gemini(messages)["contents"][1]["parts"] == [THOUGHT, {"text": "a"}]


def test_reasoning_that_leads_to_nothing_is_left_out():
    items = render.to_responses([user(text("q")), Message("assistant", [REASONING])])["input"]
    assert [item.get("type") for item in items] == [None]


def test_a_refusal_is_text_elsewhere():
    messages = [Message("user", "q"), intake.accept({"role": "assistant", "content": None, "refusal": "I can't."})]
    assert render.to_anthropic(messages)["messages"][1]["content"] == [text("I can't.")]
    assert render.to_gemini(messages)["contents"][1]["parts"] == [{"text": "I can't."}]


@pytest.mark.req("A-7")
@pytest.mark.parametrize(
    ("result", "failed", "chat", "anthropic", "gemini"),
    [
        ("42", False, "42", "42", {"output": "42"}),
        ("no", True, "Error: no", "no", {"error": "no"}),
        ("Error 5", True, "Error 5", "Error 5", {"error": "Error 5"}),
        ({"a": [1]}, False, '{"a":[1]}', '{"a":[1]}', {"a": [1]}),
        ({"error": 1}, False, '{"error":1}', '{"error":1}', {"output": '{"error":1}'}),
        (None, False, "", None, {"output": ""}),
        ("", True, "Error: the tool gave no reason.", "Error: the tool gave no reason.",
         {"error": "the tool gave no reason."}),
        ([text("a"), text("b")], False, "a\nb", [text("a"), text("b")], {"output": "a\nb"}),
        ([{"type": "row"}], False, '[{"type":"row"}]', '[{"type":"row"}]', {"output": '[{"type":"row"}]'}),
    ],
)  # fmt: skip
def test_results(result: Any, failed: bool, chat: str, anthropic: Any, gemini: Any):
    messages = [Message("user", "q"), calling("c"), told("c", result, failed=failed)]
    assert render.to_chat(messages)[2]["content"] == chat
    assert render.to_responses(messages)["input"][2]["output"] == chat
    (block,) = render.to_anthropic(messages)["messages"][2]["content"]
    assert block.get("content") == anthropic and block.get("is_error", False) is failed
    (part,) = render.to_gemini(messages)["contents"][2]["parts"]
    assert part["function_response"]["response"] == gemini


def test_a_tool_messages_content_stands_for_a_result_that_is_not_given():
    told_so = Message("tool", "42", tool_results=[ToolCallResult("c")])
    assert render.to_chat([calling("c"), told_so])[1]["content"] == "42"
    again = Message("tool", "42", tool_results=[ToolCallResult("c", "43")])
    assert [m["content"] for m in render.to_chat([calling("c"), again])] == [None, "43"]


def test_a_picture_in_a_result_reaches_every_provider():
    messages = [Message("user", "q"), calling("c"), told("c", [text("Here:"), CLAUDE_PNG])]
    chat = render.to_chat(messages)
    assert chat[2]["content"] == "Here:\n[image: shown below]"
    assert chat[3] == {"role": "user", "content": [CHAT_PNG]}
    assert render.to_responses(messages)["input"][2]["output"][1] == INPUT_PNG
    (block,) = render.to_anthropic(messages)["messages"][2]["content"]
    assert block["content"] == [text("Here:"), CLAUDE_PNG]
    assert render.to_gemini(messages)["contents"][3]["parts"] == [GEMINI_PNG]


@pytest.mark.req("A-6")
def test_results_stand_where_each_provider_wants_them():
    messages = [
        Message("user", "q"), calling("a", "b", "c"), told("c"), told("a"), told("b"),
        Message("user", "And?"),
    ]  # fmt: skip
    chat = render.to_chat(messages)
    assert [m.get("tool_call_id") for m in chat] == [None, None, "c", "a", "b", None]
    turns = render.to_anthropic(messages)["messages"]
    assert [turn["role"] for turn in turns] == ["user", "assistant", "user"]
    assert [b.get("tool_use_id", b["type"]) for b in turns[2]["content"]] == ["c", "a", "b", "text"]
    contents = render.to_gemini(messages)["contents"]
    responses = [part["function_response"]["id"] for part in contents[2]["parts"]]
    assert responses == ["a", "b", "c"]
    assert contents[3] == {"role": "user", "parts": [{"text": "And?"}]}


def test_what_the_user_said_beside_results_comes_after_all_of_them():
    beside = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "1"}, text("Hurry!")]}
    messages = [Message("user", "q"), calling("a", "b"), intake.accept(beside), told("b", "2")]
    blocks = render.to_anthropic(messages)["messages"][2]["content"]
    assert [block["type"] for block in blocks] == ["tool_result", "tool_result", "text"]
    assert render.to_chat(messages)[-1] == {"role": "user", "content": [text("Hurry!")]}
    assert render.to_gemini(messages)["contents"][3]["parts"] == [{"text": "Hurry!"}]


def test_system_messages_at_the_start_and_later():
    messages = [
        Message("system", "Be brief."), Message("system", "So far: nothing."),
        Message("user", "q"), Message("system", "It is noon."), Message("assistant", "a"),
    ]  # fmt: skip
    anthropic, gemini = render.to_anthropic(messages), render.to_gemini(messages)
    assert anthropic["system"] == [text("Be brief."), text("So far: nothing.")]
    later = "<system>\nIt is noon.\n</system>"
    assert anthropic["messages"][0]["content"] == [text("q"), text(later)]
    assert gemini["system_instruction"]["parts"][0] == {"text": "Be brief."}
    assert gemini["contents"][0]["parts"] == [{"text": "q"}, {"text": later}]
    responses = render.to_responses(messages)
    assert responses["instructions"] == "Be brief.\n\nSo far: nothing."
    assert responses["input"][1] == {"role": "system", "content": "It is noon."}
    assert [m["role"] for m in render.to_chat(messages)][:2] == ["system", "system"]


def test_without_a_system_prompt_there_is_no_key_for_it():
    messages = [Message("system", " "), Message("user", "q")]
    assert render.to_anthropic(messages).keys() == {"messages"}
    assert render.to_gemini(messages).keys() == {"contents"}
    assert render.to_responses(messages).keys() == {"input"}


@pytest.mark.parametrize("messages", [[], [Message("assistant", "Welcome.")]])
def test_the_user_begins(messages: list[Message]):
    assert render.to_anthropic(messages)["messages"][0] == {"role": "user", "content": content_parts.OPENING_USER_TEXT}
    assert render.to_gemini(messages)["contents"][0]["parts"] == [{"text": content_parts.OPENING_USER_TEXT}]


def test_blank_text_is_left_out_and_neighbours_become_one():
    messages = [
        Message("user", "a"), Message("assistant", " "), Message("user", [text(""), text("b")]),
        Message("assistant", "Once upon \n"),
    ]  # fmt: skip
    turns = render.to_anthropic(messages)["messages"]
    assert turns[0]["content"] == [text("a"), text("b")]
    assert turns[1]["content"] == "Once upon"
    longer = render.to_anthropic([*messages, Message("user", "go on")])["messages"]
    assert longer[1]["content"] == "Once upon \n"


@pytest.mark.req("A-6")
@pytest.mark.parametrize("id_", ["a b", "工具", "x" * 90, "call.1"])
def test_an_id_that_is_not_accepted_is_replaced_in_call_and_result(id_: str):
    messages = [Message("user", "q"), calling(id_, "ok"), told(id_), told("ok")]
    turns = render.to_anthropic(messages)["messages"]
    first, second = (block["id"] for block in turns[1]["content"])
    assert first != id_ and second == "ok"
    assert [block["tool_use_id"] for block in turns[2]["content"]] == [first, second]
    assert providers.check_anthropic({"messages": turns}) == []


@pytest.mark.req("A-6")
def test_an_id_that_comes_again_is_told_apart_where_it_has_to_be():
    messages = [Message("user", "q")]
    for number in range(3):
        messages += [calling("c", name=f"f{number}"), told("c", str(number))]
    items = render.to_responses(messages)["input"]
    called = {item["call_id"]: item["name"] for item in items if item.get("name")}
    assert len(called) == 3 and "c" in called
    outputs = {called[item["call_id"]]: item["output"] for item in items if "output" in item}
    assert outputs == {"f0": "0", "f1": "1", "f2": "2"}
    assert {m["tool_call_id"] for m in render.to_chat(messages) if m["role"] == "tool"} == {"c"}


def test_a_derived_id_that_is_taken_is_derived_again():
    ids = content_parts.ProviderCallIds("[a-zA-Z0-9_-]+", 64, once=True)
    message = calling("a b")
    (first,), (second,) = ids.ids_of_message(message).values(), ids.ids_of_message(message).values()
    assert first != second


def test_names_are_made_to_fit():
    messages = [Message("user", "q"), calling("c", name="1.find it" + "x" * 80), told("c")]
    call = render.to_gemini(messages)["contents"][1]["parts"][0]["function_call"]
    assert call["name"].startswith("_1.find_itx") and len(call["name"]) == 64
    (block,) = render.to_anthropic(messages)["messages"][1]["content"]
    assert block["name"].startswith("1_find_itx") and len(block["name"]) == 64


def test_a_custom_tools_call_stays_one_in_responses():
    call = {"id": "c", "type": "custom", "custom": {"name": "grep", "input": "needle"}}
    messages = [intake.accept({"role": "assistant", "content": None, "tool_calls": [call]}), told("c")]
    made, output = render.to_responses(messages)["input"]
    assert made == {"type": "custom_tool_call", "call_id": "c", "name": "grep", "input": "needle"}
    assert output["type"] == "custom_tool_call_output"


def test_the_nulls_of_a_dump_are_not_sent_back():
    dumped = {"role": "assistant", "content": "a", "tool_calls": None, "annotations": []}
    (out,) = render.to_chat([intake.accept(dumped)])
    assert out == {"role": "assistant", "content": "a", "annotations": []}


def test_a_responses_own_fields_are_not_sent_back():
    answer = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m",
              "usage": {}, "content": [SIGNED, text("a")]}  # fmt: skip
    turns = render.to_anthropic([Message("user", "q"), intake.accept(answer)])["messages"]
    assert turns[1] == {"role": "assistant", "content": [SIGNED, text("a")]}


@pytest.mark.parametrize("to", [render.to_chat, render.to_responses, render.to_anthropic, render.to_gemini])
@pytest.mark.parametrize(
    ("messages", "error"),
    [
        ([calling("a", "b"), told("a")], errors.OpenCalls),
        ([calling("a"), Message("user", "q"), told("a")], errors.OpenCalls),
        ([Message("user", "q"), told("a")], errors.ResultWithoutCall),
        ([calling("a", "b"), told("x")], errors.ResultWithoutCall),
    ],
)
def test_what_is_not_paired_is_refused(to: Callable[[Any], Any], messages: list[Message], error: type[errors.Error]):
    with pytest.raises(error):
        to(messages)


@pytest.mark.parametrize(
    "rows",
    [
        [{"type": "file", "name": "a.txt", "size": 7}],
        [{"type": "text", "content": {"deep": 1}}],
        [{"type": "image", "title": "Oslo", "source": "camera"}],
        [{"type": "text", "text": "a"}, {"type": "file", "name": "b"}],
    ],
)
def test_rows_that_a_tool_gave_are_said_as_they_are(rows: list[dict[str, Any]]):
    messages = [Message("user", "ls"), calling("c"), told("c", rows)]
    said = json.dumps(rows, separators=(",", ":"))
    assert render.to_chat(messages)[2]["content"] == said
    assert render.to_responses(messages)["input"][2]["output"] == said
    assert render.to_anthropic(messages)["messages"][2]["content"][0]["content"] == said
    part = render.to_gemini(messages)["contents"][2]["parts"][0]
    assert part["function_response"]["response"] == {"output": said}


def test_names_that_a_provider_refuses_are_mended_in_its_own_dicts():
    call = {"id": "c", "type": "function", "function": {"name": "files.read:1", "arguments": "{}"}}
    custom = {"id": "d", "type": "custom", "custom": {"name": "a b", "input": "x"}}
    chat = [
        {"role": "user", "name": "Ada Lovelace", "content": "q"},
        {"role": "user", "name": None, "content": "q"},
        {"role": "assistant", "content": None, "tool_calls": [call, custom]},
        {"role": "tool", "tool_call_id": "c", "name": "files.read:1", "content": "1"},
        {"role": "tool", "tool_call_id": "d", "content": "2"},
    ]
    sent = render.to_chat([intake.accept(raw) for raw in chat])
    assert providers.check_openai_chat(sent) == []
    assert [raw.get("name") for raw in sent] == ["Ada_Lovelace", None, None, "files_read_1", None]
    assert sent[2]["tool_calls"][0]["function"]["name"] == "files_read_1"
    assert sent[2]["tool_calls"][1]["custom"]["name"] == "a_b"
    long, odd = "x" * 128, "a.b"
    uses = [{"type": "tool_use", "id": name[:9], "name": name, "input": {}} for name in (long, odd)]
    answers = [{"type": "tool_result", "tool_use_id": use["id"], "content": "1"} for use in uses]
    said = [{"role": "user", "content": "q"}, {"role": "assistant", "content": uses}]
    request = render.to_anthropic([intake.accept(raw) for raw in [*said, {"role": "user", "content": answers}]])
    assert providers.check_anthropic(request) == []
    assert [use["name"] for use in request["messages"][1]["content"]] == [long, "a_b"]


def test_reasoning_goes_to_responses_once_and_only_openais():
    foreign = {"type": "reasoning", "id": "other-1", "summary": []}
    messages = [
        Message("user", "q"), Message("assistant", [REASONING, text("a")]),
        Message("assistant", [REASONING, foreign, text("b")]), Message("user", "r"),
    ]  # fmt: skip
    request = render.to_responses(messages)
    assert [item.get("type", item.get("content")) for item in request["input"]] == [
        "q", "reasoning", "a", "b", "r",
    ]  # fmt: skip
    assert request["input"][3]["content"] == "b"
    assert providers.check_openai_responses(request) == []
