"""Language models that Limpet can ask for summaries and facts. None is needed to keep state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from limpet.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from limpet.llm.extraction import ModelExtractor
    from limpet.llm.models import AnthropicModel, Backoff, OpenAIModel
    from limpet.llm.port import Model, Reply
    from limpet.llm.summarizer import ModelSummarizer

__all__ = ["AnthropicModel", "Backoff", "Model", "ModelExtractor", "ModelSummarizer", "OpenAIModel", "Reply"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_exports(
        __name__, __all__, "limpet.llm.port", "limpet.llm.summarizer", "limpet.llm.extraction", "limpet.llm.models"
    )
