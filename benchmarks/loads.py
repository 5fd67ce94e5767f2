"""What is written: recorded conversations where they are found, generated ones always."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests import corpus
from tests.corpus import ChatMessage

CONVERSATIONS = 100


@dataclass(frozen=True)
class Load:
    """Conversations by a name, laid end to end as often as needed."""

    name: str
    conversations: Sequence[list[ChatMessage]]

    def laid_end_to_end(self, start: int = 0) -> Iterator[ChatMessage]:
        """Yield messages for ever, beginning with conversation number `start`."""
        whole = len(self.conversations)
        for number in itertools.count(start):
            yield from self.conversations[number % whole]

    def batches(self, messages: int, batch: int) -> Iterator[list[ChatMessage]]:
        """Yield about `messages` messages in batches, and end where a conversation ends."""
        waiting: list[ChatMessage] = []
        given = 0
        for conversation in itertools.cycle(self.conversations):
            waiting += conversation
            if len(waiting) >= batch or given + len(waiting) >= messages:
                yield waiting
                given += len(waiting)
                waiting = []
            if given >= messages:
                return

    def json_bytes(self) -> int:
        return sum(len(corpus.compact_json(m)) for c in self.conversations for m in c)


def find_loads(recorded: Path) -> list[Load]:
    """Give the recorded load, if its file exists, and the two generated ones."""
    loads = [
        Load("generated", list(corpus.conversations(1, CONVERSATIONS))),
        Load("parallel", list(corpus.conversations(2, CONVERSATIONS, parallel=True))),
    ]
    if recorded.exists():
        loads.insert(0, Load("recorded", list(corpus.read_recorded(recorded))))
    return loads
