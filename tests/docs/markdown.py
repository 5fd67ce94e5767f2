"""Reads our Markdown: fenced blocks, links and headings. Only what the documentation uses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)")
LINK = re.compile(r"(?<!`)\[[^\]\n]*\]\((?P<target>[^)\s]+)(?: \"[^\"]*\")?\)")
HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced block. `follows` says that only blank lines are between it and the block before."""

    language: str
    text: str
    line: int
    follows: bool


def blocks(text: str) -> Iterator[Block]:
    lines = text.splitlines()
    ended = None
    number = 0
    while number < len(lines):
        fence = FENCE.match(lines[number])
        if not fence:
            number += 1
            continue
        indent, first = len(fence["indent"]), number + 1
        last = first
        while lines[last].strip() != "```":
            last += 1
        yield Block(
            language=fence["language"],
            text="".join(line[indent:] + "\n" for line in lines[first:last]),
            line=first + 1,
            follows=ended is not None and not "".join(lines[ended:number]).strip(),
        )
        ended = number = last + 1


def prose(text: str) -> str:
    """The text without its fenced blocks."""
    kept: list[str] = []
    fenced = False
    for line in text.splitlines():
        if FENCE.match(line):
            fenced = not fenced
        elif not fenced:
            kept.append(line)
    return "\n".join(kept)


def links(text: str) -> list[str]:
    return [match["target"] for match in LINK.finditer(prose(text))]


def anchors(path: Path) -> set[str]:
    """The ids that renderers give to a file's headings."""
    found: set[str] = set()
    for heading in HEADING.findall(prose(path.read_text(encoding="utf-8"))):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", words).strip().replace(" ", "-")
        copies = sum(anchor == slug or anchor.startswith(f"{slug}-") for anchor in found)
        found.add(f"{slug}-{copies}" if slug in found else slug)
    return found
