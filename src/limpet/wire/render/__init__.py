"""Messages out: from a window of messages to what each provider's call takes.

Pure functions. The messages are those of a valid window: system messages first if there are any, every
call with all its results before anything else is said. What comes out is plain JSON that the caller
may change. What came in from a provider goes back to it as it came, save for what it would refuse.
"""

from limpet.wire.render.anthropic import to_anthropic
from limpet.wire.render.chat import to_chat
from limpet.wire.render.gemini import to_gemini
from limpet.wire.render.responses import to_responses

__all__ = ["to_anthropic", "to_chat", "to_gemini", "to_responses"]
