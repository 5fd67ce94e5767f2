"""The books of a frame tree: bars, sums, and what does not add up."""

from __future__ import annotations

import json

import msgspec
import pytest

from limpet.cli import exit_codes
from limpet.cli.options import CommonOptions
from limpet.cli.output import Output
from limpet.cli.subcommands import frame_tree_commands
from limpet.core.values.frame_state import Frame, FrameStatus, Scope, TokenBudget

replace = msgspec.structs.replace


def frame(frame_id: str, budget: TokenBudget, parent: str | None = None, **more: object) -> Frame:
    made = Frame(
        frame_id=frame_id, root_id="r", scope=Scope("a"), goal="g", budget=budget, parent_frame_id=parent
    )  # fmt: skip
    return replace(made, **more)


def family() -> list[Frame]:
    """A root with an open child, and a closed one that spent 40."""
    return [
        frame("r", TokenBudget(1_000, used=140, reserved=60, subcall_allocation=300),
              reservations={"x": 60}, settled=40),
        frame("c", TokenBudget(300, used=70), "r"),
        frame("d", TokenBudget(200, used=40), "r", status=FrameStatus.CANCELLED),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("account", "drawn"),
    [
        (frame_tree_commands.FrameAccount(8_000, 2_000, 0, 0, 700, 3_000, 2_300, 0), "█████▒▒░░░░░░░······"),
        (frame_tree_commands.FrameAccount(1_000_000, 1, 0, 0, 1, 1, 999_997, 0), "█▒░·················"),
        (frame_tree_commands.FrameAccount(500, 700, 0, 0, 0, 0, 0, 200), "██████████████!!!!!!"),
        (frame_tree_commands.FrameAccount(500, 100, 0, 0, 200, 400, 0, 200), "▒▒▒▒▒▒░░░░░░░░░░!!!!"),
        (frame_tree_commands.FrameAccount(0, 0, 0, 0, 0, 0, 0, 0), " " * 20),
        (frame_tree_commands.FrameAccount(0, 5, 0, 0, 0, 0, 0, 5), "!" * 20),
    ],
)
def test_bars(account: frame_tree_commands.FrameAccount, drawn: str):
    shown = frame_tree_commands.account_bar(account, plain=False)
    assert len(shown) == frame_tree_commands.ACCOUNT_BAR_CELLS
    for glyph in "█▒░!·":
        assert (glyph in shown) is (glyph in drawn)
    if account.total in {8_000, 1_000_000}:
        assert shown == drawn
    assert frame_tree_commands.account_bar(account, plain=True).isascii()


def test_own_and_all_that_was_spent():
    found = frame_tree_commands.tree_accounts(family())
    root = found["r"]
    assert (root.own, root.used, root.with_descendants) == (100, 140, 210)
    assert (found["c"].own, found["c"].with_descendants) == (70, 70)
    assert root.document()["with_descendants"] == 210
    assert frame_tree_commands.account_equation(root) == (
        "1,000 = 140 used (40 by children) + 60 reserved + 300 lent + 500 free"
    )


def test_books_that_add_up():
    assert frame_tree_commands.account_faults(family(), closed=True) == []
    assert frame_tree_commands.account_faults(family()[:2], closed=False) == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"budget": TokenBudget(1_000, used=140, reserved=60, subcall_allocation=301)}, "it lent 301"),
        ({"budget": TokenBudget(1_000, used=140, reserved=61, subcall_allocation=300)}, "it reserved 61"),
        ({"settled": 41}, "41 were settled"),
        ({"settled": 141}, "spent 141, but only 140"),
    ],
)  # fmt: skip
def test_books_that_do_not(change: dict[str, object], says: str):
    root, *children = family()
    found = frame_tree_commands.account_faults([replace(root, **change), *children], closed=True)
    assert {fault.frame_id for fault in found} == {"r"}
    assert any(says in fault.text for fault in found)


def test_a_tree_whose_books_are_wrong_ends_with_damage(capsys: pytest.CaptureFixture[str]):
    root, *children = family()
    wrong = replace(root, settled=0)
    drawn = frame_tree_commands.FrameTreeView([wrong, *children], complete=True, waiting=[])
    assert (
        frame_tree_commands.print_trees(Output(CommonOptions(json=True)), [drawn], "r", CommonOptions())
        == exit_codes.DAMAGE
    )
    (told,) = json.loads(capsys.readouterr().out)["trees"]
    assert not told["conserved"]
    assert told["faults"][0]["frame"] == "r"
    shown = [line for line, _ in frame_tree_commands.tree_lines(drawn, Output(CommonOptions()))]
    assert any(line.endswith("not conserved ✗") for line in shown)
    assert (
        frame_tree_commands.print_trees(
            Output(CommonOptions()),
            [frame_tree_commands.FrameTreeView(family(), complete=True, waiting=[])],
            "r",
            CommonOptions(),
        )
        == 0
    )
