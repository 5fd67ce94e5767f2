"""Messages as the arguments of the providers' own clients.

`to_chat`, `to_responses`, `to_anthropic` and `to_gemini` take the messages of a window, or of a whole
session, and return plain dicts. Type checkers see the parameter types of the client libraries.
"""

from limpet.core.formats.anthropic import AnthropicRequest, to_anthropic
from limpet.core.formats.gemini import GeminiRequest, to_gemini
from limpet.core.formats.openai import ResponsesRequest, to_chat, to_responses

__all__ = [
    "AnthropicRequest",
    "GeminiRequest",
    "ResponsesRequest",
    "to_anthropic",
    "to_chat",
    "to_gemini",
    "to_responses",
]
