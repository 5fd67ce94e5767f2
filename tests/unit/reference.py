"""tiktoken with its vocabularies from a wheel: by itself it would fetch them."""

from __future__ import annotations

import base64
import gzip
from functools import cache
from importlib.metadata import distribution
from pathlib import Path

import tiktoken
import tiktoken_ext.openai_public as public


@cache
def encoding(name: str) -> tiktoken.Encoding:
    wheel = distribution("bpe-openai")
    packed = Path(str(wheel.locate_file(f"bpe_openai/data/{name}.tiktoken.gz"))).read_bytes()
    rows = (line.split() for line in gzip.decompress(packed).splitlines() if line)
    ranks = {base64.b64decode(token): int(rank) for token, rank in rows}
    return tiktoken.Encoding(name, pat_str=_pattern(name), mergeable_ranks=ranks, special_tokens={})


def _pattern(name: str) -> str:
    """tiktoken's own pattern for a vocabulary, without the files that come with it."""
    loader = public.load_tiktoken_bpe
    public.load_tiktoken_bpe = lambda *_, **__: {}
    try:
        return str(public.ENCODING_CONSTRUCTORS[name]()["pat_str"])
    finally:
        public.load_tiktoken_bpe = loader
