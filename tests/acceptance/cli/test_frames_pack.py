"""`limpet frames pack`: what a model saw for a frame, as it was recorded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import limpet
from limpet import ContextHandle, Scope
from limpet.frames import HandleType
from tests.acceptance.cli.command_runs import on_terminal, run

EVIL = "\x1b[2Jgone"


@pytest.fixture
def packs(tmp_path: Path) -> dict[int, limpet.ContextPack]:
    """Two packs of one frame, by the version of the event that recorded each."""
    made: dict[int, limpet.ContextPack] = {}
    with limpet.connect(tmp_path / "state.db") as lp:
        lp.index.push_frame(Scope("planner"), goal=f"plan {EVIL}", budget=8_000, frame_id="work")
        for number in (1, 2):
            handle = ContextHandle(
                handle_id=f"page-{number}", handle_type=HandleType.DOCUMENT, content=f"fact {number} {EVIL}"
            )
            lp.index.add_context_handle("work", handle)
            pack = lp.index.assemble_context_pack(Scope("planner"), budget_tokens=2_000)
            made[lp.index.get_tree("work").version] = pack
    return made


def test_the_pack_of_an_event_is_the_one_that_was_recorded(tmp_path: Path, packs: dict[int, limpet.ContextPack]):
    for version, pack in packs.items():
        shown = run("frames", "pack", "work", "--at", str(version), "--json", cwd=tmp_path)
        assert json.loads(shown.out)["context_hash"] == pack.context_hash
        sent = run("frames", "pack", "work", "--at", str(version), "--as", "openai", cwd=tmp_path)
        assert json.loads(sent.out) == pack.to_openai()
    last = run("frames", "pack", "work", "--json", cwd=tmp_path)
    assert json.loads(last.out)["context_hash"] == list(packs.values())[-1].context_hash


def test_a_terminal_gets_the_account_and_nothing_that_it_would_obey(
    tmp_path: Path, packs: dict[int, limpet.ContextPack]
):
    shown = on_terminal("frames", "pack", "work", cwd=tmp_path, env={"NO_COLOR": "1"}).out
    assert list(packs.values())[-1].context_hash in shown.replace("\r\n", "")
    assert "\x1b[2J" not in shown
    rows = run("frames", "pack", "work", cwd=tmp_path).out.splitlines()
    assert [row.split("\t")[:3] for row in rows] == [["page-1", "1", "kept"], ["page-2", "1", "kept"]]


def test_an_event_without_a_pack_is_said_so(tmp_path: Path, packs: dict[int, limpet.ContextPack]):
    assert 1 not in packs
    missing = run("frames", "pack", "work", "--at", "1", cwd=tmp_path)
    assert missing.code == 3 and not missing.out
