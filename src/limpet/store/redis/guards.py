"""Taking turns at a tenant while several stores write to it. Nothing rests on it: it only saves deciding in vain."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from limpet.store.redis import packing
from limpet.store.redis.links import Call
from limpet.store.redis.names import Names
from limpet.store.redis.servers import Servers

_HELD_MS: Final = 2_000
"""How long one that is not given back is held: its holder died, or takes too long."""

_PAUSES_S: Final = (0.001, 0.005)
"""Between two tries, the first and the longest."""


class Guards:
    """The guard of a tenant is a key that ends by itself: the only one of a store that does."""

    def __init__(self, servers: Servers, names: Names, random: Callable[[int], bytes]) -> None:
        self._servers = servers
        self._names = names
        self._random = random
        self.token = b""
        """What the guard that is had, if one is, holds at the server."""

    def take(self, tenant: str, timeout_s: float) -> bool:
        """Try to have the guard within a time; all others that listen are told first."""
        key, token = self._names.base(tenant) + b"guard", self._random(16)
        until, pause = time.monotonic() + timeout_s, _PAUSES_S[0]
        tell = Call(
            key, (b"PUBLISH", self._names.channel, packing.news(tenant, 0, self._names.sender))
        )
        take = Call(key, (b"SET", key, token, b"NX", b"PX", _HELD_MS))
        _, taken = self._servers.run([tell, take])
        while not taken:
            if time.monotonic() + pause > until:
                return False
            time.sleep(pause)
            pause = min(pause * 2, _PAUSES_S[1])
            (taken,) = self._servers.run([take])
        self.token = token
        return True

    def give_back(self, tenant: str) -> None:
        """Give it back, if it is had still."""
        token, self.token = self.token, b""
        if token:
            key = self._names.head(tenant)
            self._servers.script("unguard", key, token)
