"""The model port: one question, one answer."""

from __future__ import annotations

from typing import Protocol

import msgspec


class Reply(msgspec.Struct, frozen=True):
    """An answer of a model, with the tokens that its provider reports. `cut`: the text ends at `tokens_max`."""

    text: str
    model: str
    input_tokens: int | None = None
    output_tokens: int | None = None
    cut: bool = False


class Model(Protocol):
    """A language model. Threads may share it."""

    @property
    def name(self) -> str:
        """The model's name, which is stored with its texts."""
        ...

    @property
    def window(self) -> int:
        """The number of tokens that question and answer may have together."""
        ...

    def complete(self, system: str, prompt: str, *, tokens_max: int) -> Reply:
        """Return the model's answer of at most `tokens_max` tokens.

        Raises Unavailable after the configured retries, and Refused if a retry is useless.
        """
        ...
