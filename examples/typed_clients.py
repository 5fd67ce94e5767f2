"""One conversation, sent to three providers through their own clients. Type checkers accept every call.

    python examples/typed_clients.py openai "A flight to Oslo, please."
    python examples/typed_clients.py anthropic "And a hotel?"

The providers are `openai`, `responses`, `anthropic` and `gemini`. Each client library reads its key from an
environment variable of its own. The conversation is in trips.db, so any provider can give the next answer.
"""

from __future__ import annotations

import argparse

import limpet
from limpet import Window


def ask_chat_completions(window: Window) -> str:
    """Return the answer of OpenAI's Chat Completions."""
    from openai import OpenAI

    answer = OpenAI().chat.completions.create(model="gpt-5-mini", messages=window.to_openai())
    return answer.choices[0].message.content or ""


def ask_responses(window: Window) -> str:
    """Return the answer of OpenAI's Responses."""
    from openai import OpenAI

    request = window.to_openai_responses()
    answer = OpenAI().responses.create(
        model="gpt-5-mini", instructions=request.get("instructions"), input=request["input"]
    )
    return answer.output_text


def ask_anthropic(window: Window) -> str:
    """Return the answer of Anthropic's Messages."""
    from anthropic import Anthropic

    request = window.to_anthropic()
    answer = Anthropic().messages.create(
        model="claude-haiku-4-5", max_tokens=1_000, system=request.get("system", []), messages=request["messages"]
    )
    return "".join(block.text for block in answer.content if block.type == "text")


def ask_gemini(window: Window) -> str:
    """Return the answer of Gemini."""
    from google import genai

    request = window.to_gemini()
    answer = genai.Client().models.generate_content(
        model="gemini-2.5-flash",
        contents=request["contents"],
        config={"system_instruction": request.get("system_instruction")},
    )
    return answer.text or ""


PROVIDERS = {
    "openai": ask_chat_completions,
    "responses": ask_responses,
    "anthropic": ask_anthropic,
    "gemini": ask_gemini,
}


def main() -> None:
    """Append the question, ask the provider, append its answer and print it."""
    options = argparse.ArgumentParser(description="Ask one of several providers.")
    options.add_argument("provider", choices=PROVIDERS)
    options.add_argument("question")
    given = options.parse_args()
    with limpet.connect("trips.db") as lp:
        session = lp.sessions.get_or_create_session("trip", system="You plan trips.")
        session.add_message({"role": "user", "content": given.question})
        answer = PROVIDERS[given.provider](session.window(budget=8_000))
        session.add_message({"role": "assistant", "content": answer})
    print(answer)


if __name__ == "__main__":
    main()
