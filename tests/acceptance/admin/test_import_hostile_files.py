"""Files from anybody: cut off, altered, forged. Each is refused whole, with a typed error, before anything is written."""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import WindowPolicy, errors, limits

Lines = list[dict[str, Any]]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("hostile") / "a.jsonl"
    with limpet.connect("volatile:") as lp:
        session = lp.sessions.create_session(
            "s", user_id="ada", system="You plan.", policy=WindowPolicy(budget=300, summary="en")
        )
        calls = [{"id": name, "type": "function", "function": {"name": "f", "arguments": "{}"}} for name in ("a", "b")]
        session.add_message({"role": "user", "content": "go"})
        session.add_message({"role": "assistant", "content": None, "tool_calls": calls})
        for name in ("b", "a"):
            session.add_message({"role": "tool", "tool_call_id": name, "content": "done " * 40})
        session.add_message({"role": "assistant", "content": "ok"}, window=session.window(900))
        lp.sessions.rewind_session("s", 2)
        session = lp.sessions.get_session("s")
        for number in range(12):
            session.add_message({"role": "user", "content": f"{number} " * 60})
        lp.sessions.update_session("s", title="t", metadata={"a": 1})
        lp.sessions.fork_session("s", 3, new_id="f", title="fork")
        lp.admin.export(path)
    return path.read_bytes()


def sealed(lines: Lines | list[bytes]) -> bytes:
    """A file with the right counts and digest, whatever is in it."""
    made = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    body = b"".join(line + b"\n" for line in made)
    kinds = [line[:40] for line in made]
    end = {
        "line": "end",
        "sessions": sum(b'"session"' in kind for kind in kinds),
        "events": sum(b'"event"' in kind for kind in kinds),
        "messages": sum(b"session.message_added" in line[:80] for line in made),
        "sha256": hashlib.sha256(body).hexdigest(),
    }
    return body + json.dumps(end).encode() + b"\n"


def refused(data: bytes, tmp_path: Path, *kinds: type[errors.Error]) -> errors.Error:
    path = tmp_path / "hostile.jsonl"
    path.write_bytes(data)
    with limpet.connect("volatile:") as lp:
        with pytest.raises(kinds or errors.DamagedFile) as caught:
            lp.admin.import_(path, format="limpet")
        assert list(lp.events.feed()) == [], "nothing was written"
    return caught.value


def test_cut_off_anywhere_it_is_refused(whole: bytes, tmp_path: Path):
    lines = whole.splitlines(keepends=True)
    for count in range(len(lines)):
        refused(b"".join(lines[:count]), tmp_path)
    for size in range(1, len(whole), 997):
        refused(whole[:size], tmp_path)
    refused(whole + lines[1], tmp_path)
    refused(whole + whole, tmp_path)


def test_an_altered_byte_is_found(whole: bytes, tmp_path: Path):
    for at in range(0, len(whole), 499):
        altered = bytearray(whole)
        altered[at] ^= 1
        refused(bytes(altered), tmp_path, errors.DamagedFile, errors.NewerStore)


def test_lines_may_not_be_missing_moved_or_doubled(whole: bytes, tmp_path: Path):
    lines = whole.splitlines(keepends=True)
    for at in range(1, len(lines) - 1, 3):
        refused(b"".join(lines[:at] + lines[at + 1 :]), tmp_path)
        refused(b"".join([*lines[:at], lines[at], *lines[at:]]), tmp_path)
    refused(b"".join([lines[0], *lines[2:4], lines[1], *lines[4:]]), tmp_path)


def event(lines: Lines, kind: str) -> dict[str, Any]:
    return next(line for line in lines if line.get("kind") == f"session.{kind}")


def edit(kind: str, **data: Any) -> Callable[[Lines], None]:
    return lambda lines: event(lines, kind)["data"].update(data)


def line(of: str, **fields: Any) -> Callable[[Lines], None]:
    return lambda lines: event(lines, of).update(fields)


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def without(kind: str) -> Callable[[Lines], None]:
    return lambda lines: lines.remove(event(lines, kind))


def result_of(call: str) -> Callable[[Lines], None]:
    def change(lines: Lines) -> None:
        for one in lines:
            raw = one.get("data", {}).get("openai", {})
            if raw.get("tool_call_id") == "b":
                raw["tool_call_id"] = call

    return change


FORGED: dict[str, Callable[[Lines], object]] = {
    "no creation": without("created"),
    "created twice": lambda lines: lines.insert(3, event(lines, "created")),
    "of another session": edit("created", id="another"),
    "a title too long": edit("created", title="x" * 2000),
    "metadata too large": edit("created", metadata={"a": "x" * 70_000}),
    "metadata that is derived": edit("created", metadata={"continued_to": "x"}),
    "a user with controls": edit("created", user_id="a\x1b"),
    "a policy that is none": edit("created", policy={"budget": -1}),
    "an unknown counter": edit("created", policy={"budget": 100, "counter": "nobody's"}),
    "a place in no chain": edit("created", continuation_index=-4),
    "the same message twice": lambda lines: lines.insert(4, lines[3]),
    "a result without a call": result_of("zzz"),
    "a second result": result_of("a"),
    "an unknown role": edit("message_added", openai={"role": "king", "content": "x"}),
    "a message too deep": edit("message_added", metadata={"a": nested(80)}),
    "a message that is nothing": edit("message_added", openai={"role": "user", "content": None}),
    "a timestamp that is none": edit("message_added", timestamp="yesterday"),
    "an id too long": edit("message_added", id="x" * 300),
    "negative tokens": line("message_added", tokens=-5),
    "a counter with controls": line("message_added", counter="\x00"),
    "before 1970": line("message_added", time_us=-1),
    "in the future": line("message_added", time_us=9_999_999_999_999_999),
    "time goes back": line("updated", time_us=5),
    "an unknown kind": line("updated", kind="session.improved"),
    "a newer schema": line("updated", schema=9),
    "a rewind to nothing": edit("rewound", to=900),
    "a rewind to before the beginning": edit("rewound", to=0),
    "a fork from elsewhere": edit("forked", version=1),
    "a cut beyond": edit("window_cut", cut={"first": 99_999_999}),
    "a summary of nothing": edit(
        "summarized", summary={"first": 9, "last": 3, "text": "", "timestamp": "2026-01-01"}
    ),
    "a summary too large": edit(
        "summarized", summary={"first": 1, "last": 2, "text": "x" * 70_000, "timestamp": "2026-01-01"}
    ),
    "a window with other sizes": lambda lines: event(lines, "window_recorded")["data"][
        "selection"
    ].update(sizes=[1]),
    "a window of no messages": edit("window_recorded", messages=0),
    "a deleted session": lambda lines: lines.append(
        {"line": "event", "kind": "session.ended", "schema": 1,
         "time_us": lines[-1]["time_us"], "data": {"reason": "deleted"}}
    ),
    "an end twice": lambda lines: lines.extend(
        {"line": "event", "kind": "session.ended", "schema": 1,
         "time_us": lines[-1]["time_us"], "data": {"reason": "ended"}} for _ in range(2)
    ),
    "what a memory has taken": lambda lines: lines.append(
        {"line": "event", "kind": "session.offloaded", "schema": 1,
         "time_us": lines[-1]["time_us"], "data": {"generation": 0}}
    ),
    "what a store has erased": lambda lines: lines.append(
        {"line": "event", "kind": "session.erased", "schema": 1,
         "time_us": lines[-1]["time_us"], "data": {"events": 1, "digest": "00"}}
    ),
    "a session without events": lambda lines: lines.append({"line": "session", "id": "empty"}),
    "a session twice": lambda lines: lines.append({"line": "session", "id": "s"}),
    "an id that is none": lambda lines: lines[1].update(id="\n"),
    "a second header": lambda lines: lines.insert(2, lines[0]),
    "no header": lambda lines: lines.pop(0) and None,
    "a newer format": lambda lines: lines[0].update(version=2),
}  # fmt: skip


@pytest.mark.parametrize("forged", FORGED)
def test_a_forged_file_with_the_right_digest_is_refused(forged: str, whole: bytes, tmp_path: Path):
    lines = [json.loads(one) for one in whole.split(b"\n")[:-2]]
    # The session with everything in it comes first.
    FORGED[forged](lines)
    error = refused(sealed(lines), tmp_path, errors.DamagedFile, errors.NewerStore)
    assert error.message


@pytest.mark.parametrize(
    "data",
    [
        b'{"line":"event","kind":"session.reset","schema":1,"time_us":NaN,"data":{}}',
        b'{"line":"event","kind":"session.reset","schema":1,"time_us":1e300,"data":{}}',
        b'{"line":"event","kind":"session.message_added","schema":1,"time_us":1,"data":{"role":"user","content":"\\ud800"}}',
        b'{"line":"event","kind":"session.updated","schema":1,"time_us":1,"data":'
        + b"[" * 100_000
        + b"]" * 100_000
        + b"}",
        b"[" * 100_000,
        b"\xff\xfe{}",
        b"null",
        b"",
        b'{"line":"event","kind":"session.updated","schema":2,"time_us":1,"data":{"title":NaN}}',
        b'{"line":"other"}',
    ],
    ids=range(10),
)  # fmt: skip
def test_a_line_that_is_no_line_is_refused(data: bytes, whole: bytes, tmp_path: Path):
    lines = whole.split(b"\n")[:-2]
    refused(sealed([*lines[:3], data, *lines[3:]]), tmp_path, errors.DamagedFile, errors.NewerStore)


def test_a_huge_line_is_not_read(whole: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "EXPORT_LINE_BYTES_MAX", 100)
    assert "longer" in refused(whole, tmp_path).message


def test_the_files_forged_above_are_good_without_the_forgery(whole: bytes, tmp_path: Path):
    lines = [json.loads(one) for one in whole.split(b"\n")[:-2]]
    (tmp_path / "good.jsonl").write_bytes(sealed(lines))
    with limpet.connect("volatile:") as lp:
        assert lp.admin.import_(tmp_path / "good.jsonl").sessions == 2
        lp.admin.export(tmp_path / "again.jsonl")
    assert (tmp_path / "again.jsonl").read_bytes() == whole


def test_a_file_that_changes_while_it_is_read_makes_no_session(
    whole: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from limpet.admin import import_

    path = tmp_path / "changing.jsonl"
    path.write_bytes(whole)
    choices = import_.Importer.plan

    def changing(self: Any) -> Any:
        made = choices(self)
        path.write_bytes(whole.replace(b'"ok"', b'"no"').replace(b"go", b"no"))
        return made

    monkeypatch.setattr(import_.Importer, "plan", changing)
    with limpet.connect("volatile:") as lp:
        with pytest.raises(errors.DamagedFile, match="changed"):
            lp.admin.import_(path)
        assert lp.sessions.load_session("s") is None


def test_what_is_no_file_is_said(tmp_path: Path):
    (tmp_path / "empty").write_bytes(b"")
    os.mkfifo(tmp_path / "pipe")
    with limpet.connect("volatile:") as lp:
        with pytest.raises(errors.InvalidRequest, match="folder"):
            lp.admin.import_(tmp_path, format="openai")
        for source, kind in (
            (tmp_path / "nothing", errors.InvalidRequest),
            (tmp_path / "empty", errors.DamagedFile),
            ("a\0b", errors.InvalidRequest),
            ("", errors.InvalidRequest),
            ("-", errors.InvalidRequest),
            ("/dev/zero", errors.InvalidRequest),
            (tmp_path / "pipe", errors.InvalidRequest),
            (7, errors.InvalidRequest),
        ):
            with pytest.raises(kind):
                lp.admin.import_(source)  # pyright: ignore[reportArgumentType]
        with pytest.raises(errors.InvalidRequest, match="format"):
            lp.admin.import_(tmp_path / "empty", format="word")  # pyright: ignore[reportArgumentType]


def test_what_no_export_can_go_to_is_said(tmp_path: Path):
    (tmp_path / "file").write_bytes(b"")
    with limpet.connect("volatile:") as lp:
        for place in ("", tmp_path / "no" / "a.jsonl", tmp_path / "file" / "a", io.StringIO()):
            with pytest.raises(errors.InvalidRequest) as caught:
                lp.admin.export(place)  # pyright: ignore[reportArgumentType]
            assert caught.value.hint


def lines_of(path: Path) -> Iterator[dict[str, Any]]:
    yield from map(json.loads, path.read_bytes().split(b"\n")[:-1])


def test_links_to_sessions_of_others_lead_nowhere(tmp_path: Path):
    """A file may say that it continues whatever it likes; only those that name each other are a chain."""
    with limpet.connect("volatile:") as lp:
        lp.sessions.create_session("mine").add_message({"role": "user", "content": "a"})
        lp.admin.export(tmp_path / "a.jsonl")
        lines = list(lines_of(tmp_path / "a.jsonl"))[:-1]
        lines[1]["id"] = lines[2]["data"]["id"] = "forged"
        lines[2]["data"] |= {"continued_from": "mine", "root_id": "mine", "continuation_index": 1}
        (tmp_path / "b.jsonl").write_bytes(sealed(lines))
        lp.admin.import_(tmp_path / "b.jsonl")
        assert [part.id for part in lp.sessions.session_chain("mine")] == ["mine"]
        lp.sessions.get_session("mine").add_message({"role": "user", "content": "b"})
        assert len(lp.sessions.get_session("forged").messages) == 1
