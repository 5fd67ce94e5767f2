"""Conversion of values to and from stored bytes, provider formats and files of other programs.

Nothing that is read here is executed or imported. The functions `to_chat`, `to_responses`,
`to_anthropic` and `to_gemini` return what a provider's call takes; the messages must be those of
a valid window.
"""

from limpet.core.formats.anthropic import to_anthropic
from limpet.core.formats.gemini import to_gemini
from limpet.core.formats.openai import to_chat, to_responses

__all__ = ["to_anthropic", "to_chat", "to_gemini", "to_responses"]
