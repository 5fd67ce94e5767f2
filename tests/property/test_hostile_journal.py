"""A journal that somebody has changed, every checksum of its lines made right again: damage, or the truth.

The index is gone, as after a clone from git, so that all is taken from the journal.
"""

from __future__ import annotations

import copy
import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import Message, errors
from limpet.stores.files import journal

SEEDS = (1, 2, 3)
TRIES = 150
DROPPED = object()
VALUES: tuple[object, ...] = (
    0, -1, 2**40, 2**63, 2**70, "", "zz", "é", "\ud800", None, [], {}, True, 1.5, "A" * 70,
    {"base64": "!!!"}, {"base64": "AAA"}, {"text": "x"}, {"json": [1]}, {"json": "x", "text": "y"},
    DROPPED, "00", "../../x", [["a", "b"]], [[1, 2, 3]], "session/../x",
)  # fmt: skip
"""What is put somewhere into a line: numbers that fit nowhere, texts that are no hashes, other shapes."""

Told = dict[str, list[str]]
Line = dict[str, Any]
Path_ = tuple[str | int, ...]


def told(lp: limpet.Limpet) -> Told:
    found: Told = {}
    for row in lp.sessions.list_sessions():
        session = lp.sessions.get_session(str(row["id"]))
        found[session.id] = [str(message.content) for message in session.messages]
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A store with all that a line can hold: large contents, keys, a fork, notes, something erased."""
    with limpet.connect(f"files:{tmp_path / 'state'}") as lp:
        session = lp.sessions.create_session("a", user_id="ada")
        session.add_message(Message("user", "hello", id="m1"), key="key")
        session.add_message(Message("user", "B" * 100_000))
        session.add_message(Message("user", "C" * 40_000))
        lp.sessions.create_session("b", user_id="bo").add_message(Message("user", "x"))
        lp.sessions.fork_session("a", new_id="f")
        lp.admin.erase(session_id="a", message_id="m1")
        lp.worker().run_once()
    return tmp_path / "state"


def opened(folder: Path) -> Told:
    """Return what a store says that has nothing but its journal and its blobs."""
    for derived in (".index", "sessions"):
        shutil.rmtree(folder / derived, ignore_errors=True)
    with limpet.connect(f"files:{folder}") as lp:
        found = told(lp)
        list(lp.events.feed())
        assert lp.admin.status()["backend"] == "files"
        lp.admin.verify()
    return found


def places(value: object, at: Path_ = ()) -> Iterator[Path_]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from places(inner, (*at, name))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from places(inner, (*at, index))
    if at and at[-1] != "sum":
        yield at


def is_bound(at: Path_) -> bool:
    """Whether a hash of the log covers it: none does a tenant's name, nor what is read in the place of what was erased."""
    return "stand_in" not in at and (at[0], at[-1]) != ("tenants", "name")


def changed(document: Line, at: Path_, value: object) -> Line:
    made = copy.deepcopy(document)
    inner: Any = made
    for step in at[:-1]:
        inner = inner[step]
    if value is DROPPED:
        del inner[at[-1]]
    else:
        inner[at[-1]] = value
    return made


def written(documents: list[Line]) -> bytes:
    """Return lines whose checksums are right, whatever is in them."""
    before, text = "", b""
    for document in documents:
        kept = {name: value for name, value in document.items() if name != "sum"}
        body = json.dumps(kept, separators=(",", ":"), ensure_ascii=False)[:-1]
        line, before = resummed(before, body.encode(errors="surrogatepass"))
        text += line
    return text


def resummed(before: str, body: bytes) -> tuple[bytes, str]:
    check = journal._checksum(before, body)
    return body + b',"sum":"' + check.encode() + b'"}\n', check


@pytest.mark.parametrize("seed", SEEDS)
def test_a_changed_line_with_its_checksum_made_right_is_damage_or_the_truth(folder: Path, seed: int) -> None:
    journal, choose = folder / "journal" / "000001.jsonl", random.Random(seed)
    truth = opened(folder)
    documents = [json.loads(line) for line in journal.read_bytes().splitlines()]
    every = [(n, at) for n, line in enumerate(documents) for at in places(line) if is_bound(at)]
    refused = 0
    for _ in range(TRIES):
        n, at = choose.choice(every)
        value = choose.choice(VALUES)
        what = f"seed {seed}, line {n + 1}, {at}: {'gone' if value is DROPPED else value!r}"
        one = changed(documents[n], at, value)
        journal.write_bytes(written([*documents[:n], one, *documents[n + 1 :]]))
        try:
            found = opened(folder)
        except (errors.Corrupt, errors.NewerStore):
            refused += 1
        except Exception as error:
            raise AssertionError(f"{what} came out as {error!r}") from error
        else:
            assert found == truth, what
    assert refused > TRIES // 2
