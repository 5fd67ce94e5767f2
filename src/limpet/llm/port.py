"""The model port: one question, one answer."""

from __future__ import annotations

from typing import Protocol

import msgspec


class Reply(msgspec.Struct, frozen=True):
    """What a model answered, and what its provider charged, where it says so.

    `cut`: it had more to say than `tokens_max` allowed, so the text ends somewhere.
    """

    text: str
    model: str
    input_tokens: int | None = None
    output_tokens: int | None = None
    cut: bool = False


class Model(Protocol):
    """A language model behind some endpoint. Threads may share it."""

    @property
    def name(self) -> str:
        """Under which its texts are kept."""
        ...

    @property
    def window(self) -> int:
        """How many tokens question and answer may have together."""
        ...

    def complete(self, system: str, prompt: str, *, tokens_max: int) -> Reply:
        """Return the model's answer of at most `tokens_max` tokens.

        Raises Unavailable after the retries that its settings allow, Refused if asking again is useless.
        """
        ...
