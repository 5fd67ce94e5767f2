"""The diagram of frames is the table of their transitions, line by line."""

from __future__ import annotations

from pathlib import Path

from limpet.core.rules.frame_fold import TRANSITIONS
from tests.docs.markdown import blocks

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "frames.md"


def test_the_diagram_of_frames_is_made_from_the_table():
    drawn = ["stateDiagram-v2", "[*] --> active: push"]
    for status, following in TRANSITIONS.items():
        drawn += [f"{status} --> {after}: {why}" for after, why in following.items()]
        drawn += [] if following else [f"{status} --> [*]"]
    (diagram,) = [block for block in blocks(PAGE.read_text()) if block.language == "mermaid"]
    assert [line.strip() for line in diagram.text.splitlines()] == drawn
