"""What search finds again: facts said in passing, among thousands of messages of one user, asked for later.

Each fact is a message of the user's in one of the conversations, in the order of the file. It counts as found if
that very message is among the first ten hits. It is asked for in two ways:

- *asked otherwise*: by the question that comes with it, which has hardly a word of it (needs an embedder);
- *in its own words*: without the answer. English: the five longest words of four letters and more, in their order;
  Japanese and Chinese: the longest stretch between punctuation marks and the answer, twelve characters at most.

An update is *newest first* if, where its question finds it, what it replaces is behind it or not there.

`python -m benchmarks.recall` prints the whole table.
"""

import json
import re
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import holdfast
from benchmarks import standin
from benchmarks.harness import Bench, Figure
from benchmarks.loads import find_loads
from holdfast.context.summary import text_of
from holdfast.engine import states
from holdfast.engine.embedding import EmbedTask
from holdfast.engine.recalling import CANDIDATES, Recall
from holdfast.memory.meaning import embedding
from holdfast.memory.meaning.vectors import VectorStore
from holdfast.values.memory import Who
from holdfast.wiring.stores import open_shelf

OWN = Path(__file__).parent / "facts.jsonl"
SHARED = Path(__file__).resolve().parent.parent.parent / "shared" / "data"
USER = "ada"
CONVERSATIONS = 100
HITS = 10
ENGLISH_AT_LEAST = 78
NEWEST_AT_LEAST = 95
OWN_WORDS_AT_LEAST = 95

Search = Callable[[str, str, int], list[str]]
"""From a user, a query and how many to the texts that are found, the best first."""


@dataclass(frozen=True)
class Fact:
    id: str
    lang: str
    said: str
    asked: str
    answer: str
    kind: str
    replaces: str | None = None

    def own_words(self) -> str:
        rest = self.said.replace(self.answer, " | ")
        if self.lang == "en":
            words = [w for w in re.findall(r"[A-Za-z][A-Za-z'-]+", rest) if len(w) >= 4]
            longest = sorted(dict.fromkeys(words), key=lambda w: (-len(w), words.index(w)))[:5]
            return " ".join(word for word in dict.fromkeys(words) if word in longest)
        return max(re.split(r"[、。，！？；：「」|,.!?\s]+", rest), key=len)[:12]


@dataclass
class Found:
    """Whether each fact was found, and for updates whether the newest came first."""

    hits: dict[str, bool] = field(default_factory=dict[str, bool])
    newest: dict[str, bool] = field(default_factory=dict[str, bool])
    seconds: list[float] = field(default_factory=list[float])

    def share(self, facts: Sequence[Fact]) -> float:
        return 100 * sum(self.hits[fact.id] for fact in facts) / len(facts)

    def newest_share(self, facts: Sequence[Fact]) -> float:
        judged = [self.newest[fact.id] for fact in facts if fact.id in self.newest]
        return 100 * sum(judged) / len(judged) if judged else 100.0


def read_facts(path: Path) -> list[Fact]:
    with path.open(encoding="utf-8") as lines:
        return [Fact(**json.loads(line)) for line in lines]


def spread(conversations: Sequence[Sequence[Any]], facts: Sequence[Fact]) -> Iterator[list[Any]]:
    """Yield conversations with the facts among them, each before a message of the user's."""
    done = 0
    for number, conversation in enumerate(conversations, 1):
        until = len(facts) * number // len(conversations)
        here, done = facts[done:until], until
        asked = [at for at, message in enumerate(conversation) if message["role"] == "user"]
        said: dict[int, list[Any]] = defaultdict(list)
        for place, fact in enumerate(here, 1):
            at = asked[min(len(asked) - 1, place * len(asked) // (len(here) + 1))]
            said[at].append({"role": "user", "content": fact.said})
        yield [m for at, message in enumerate(conversation) for m in (*said[at], message)]


class World:
    """A store with one user's conversations, and the ways of searching it."""

    def __init__(self, folder: Path, conversations: Sequence[Sequence[Any]]) -> None:
        url = folder / "recall.db"
        self.hf = holdfast.connect(url)
        self.shelf = open_shelf(url)
        for conversation in conversations:
            self.hf.sessions.create_session(user_id=USER).add_messages(conversation)
        self.store = self.hf._opened.engine.store
        self.texts = dict(self._texts())
        self._words = standin.Words(self.texts)
        self.embedding_s = 0.0
        self.embedded_count = 0

    def _texts(self) -> Iterator[tuple[int, str]]:
        after = 0
        while page := self.store.feed("default", after=after):
            after = page[-1].position
            for stored in page:
                for message in states.messages_of(self.store, "default", [stored]):
                    yield stored.position, text_of(message)

    def by_words(self, user: str, query: str, k: int) -> list[str]:
        return [self.texts[position] for position in self._words.search(query, k)]

    def embedded(self) -> Search:
        """Embed everything; return search by words and meaning."""
        model = embedding.installed()
        vectors = VectorStore(self.shelf, model)
        task = EmbedTask(self.store, vectors, model)
        began = time.perf_counter()
        while task.step("default", lambda: None):
            pass
        self.embedding_s = time.perf_counter() - began
        self.embedded_count = len(vectors.gallery(Who("default", USER)).vectors)
        recall = Recall(vectors, model)

        def texts(positions: Sequence[int]) -> Mapping[int, str]:
            return {position: self.texts[position] for position in positions}

        def search(user: str, query: str, k: int) -> list[str]:
            words = self._words.search(query, max(k, CANDIDATES))
            found = recall.search(Who("default", user), query, k, by_words=words, texts=texts)
            return [self.texts[position] for position in found]

        return search

    def close(self) -> None:
        self.hf.close()
        self.shelf.close()


def ask(search: Search, facts: Sequence[Fact], query: Callable[[Fact], str]) -> Found:
    said = {fact.id: fact.said for fact in facts}
    found = Found()
    for fact in facts:
        began = time.perf_counter()
        hits = search(USER, query(fact), HITS)
        found.seconds.append(time.perf_counter() - began)
        found.hits[fact.id] = fact.said in hits
        if fact.replaces and fact.said in hits:
            old = said[fact.replaces]
            found.newest[fact.id] = old not in hits or hits.index(fact.said) < hits.index(old)
    return found


@dataclass(frozen=True)
class Result:
    facts: Sequence[Fact]
    found: Mapping[str, Found]
    messages: int
    per_s: float


def measure(folder: Path, conversations: Sequence[Sequence[Any]], facts: Sequence[Fact]) -> Result:
    world = World(folder, list(spread(conversations[:CONVERSATIONS], facts)))
    try:
        otherwise, own = (lambda fact: fact.asked), Fact.own_words
        found = {
            "words: own": ask(world.by_words, facts, own),
            "words: otherwise": ask(world.by_words, facts, otherwise),
        }
        meaning = world.embedded()
        found["meaning: own"] = ask(meaning, facts, own)
        found["meaning: otherwise"] = ask(meaning, facts, otherwise)
        return Result(facts, found, len(world.texts), world.embedded_count / world.embedding_s)
    finally:
        world.close()


def run(bench: Bench) -> list[Figure]:
    facts = read_facts(SHARED / "facts.jsonl" if (SHARED / "facts.jsonl").exists() else OWN)
    result = measure(bench.ram, bench.first_load.conversations, facts)
    english = [fact for fact in facts if fact.lang == "en"]
    asked, own = result.found["meaning: otherwise"], result.found["words: own"]
    return [
        Figure(
            name=f"English facts asked otherwise, in the first {HITS} of {result.messages:,} messages",
            value=asked.share(english),
            unit="%",
            at_least=ENGLISH_AT_LEAST,
            beside={
                "by words alone %": round(result.found["words: otherwise"].share(english), 1),
                "query ms": round(1000 * statistics.median(asked.seconds), 1),
            },
        ),
        Figure(
            name="updated facts found, the newest first",
            value=asked.newest_share(facts),
            unit="%",
            at_least=NEWEST_AT_LEAST,
        ),
        Figure(
            name="facts asked in their own words, without embeddings",
            value=own.share(facts),
            unit="%",
            at_least=OWN_WORDS_AT_LEAST,
        ),
    ]


def _print(result: Result) -> None:
    names = list(result.found)
    groups = sorted({(f.lang, kind) for f in result.facts for kind in ("", f.kind)})
    print(f"{'':24}{'facts':>6}" + "".join(f"{name:>20}" for name in names))
    for lang, kind in groups:
        some = [f for f in result.facts if f.lang == lang and kind in ("", f.kind)]
        shares = (f"{result.found[name].share(some):19.1f}%" for name in names)
        print(f"{lang} {kind or 'all':21}{len(some):6}" + "".join(shares))
    updates = [fact for fact in result.facts if fact.replaces]
    newest = (result.found[name].newest for name in names)
    counts = (f"{sum(one.values()):>12} of {len(one):>4}" for one in newest)
    print(f"{'newest first, of found':24}{len(updates):6}" + "".join(counts))
    for name in names:
        median = 1000 * statistics.median(result.found[name].seconds)
        print(f"{name}: {median:.1f} ms a query (median)")
    print(f"{result.messages:,} messages; {result.per_s:.0f} embedded in a second")


def main() -> int:
    conversations = find_loads(SHARED / "agent-conversations.jsonl.gz")[0].conversations
    for path in (SHARED / "facts.jsonl", OWN):
        if path.exists():
            with tempfile.TemporaryDirectory() as folder:
                print(f"\n{path.parent.name}/{path.name}")
                _print(measure(Path(folder), conversations, read_facts(path)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
