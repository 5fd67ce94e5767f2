"""Server settings that decide durability: checked when a store is opened, and again regularly.

Refuses a server that evicts data, that is a replica or too old, or that does not reach the
durability asked for in the URL. Also rewrites a server's files after an erasure.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import Final

import redis

from limpet import errors, limits
from limpet.core.values.validation import Json
from limpet.stores.port import DURABILITY_LEVELS
from limpet.stores.server.redis import error_mapping, serialization
from limpet.stores.server.redis.connections import RETRY_PAUSE_S, RedisConnectionPool, RedisServers

STORE_FORMAT: Final = 1
RECHECK_S: Final = 10.0
"""How long the settings of a server count as unchanged, if the URL asks for a durability."""

_VERSION_MIN: Final = (7, 0)
_WAITAOF_VERSION_MIN: Final = (7, 2)
_NO_SYNC_ON_REWRITE: Final = "no-appendfsync-on-rewrite"
"""If it is on, the server does not sync while it rewrites its files, as it does in every scrub."""

_REWRITE_IN_PROGRESS: Final = ("in progress", "child process is active")
"""Refusals of a server that rewrites files already."""

_CONFIG_NAMES: Final = (b"appendonly", b"appendfsync", _NO_SYNC_ON_REWRITE.encode(), b"maxmemory-policy", b"save")


class RedisSettings:
    """The settings of a server, or of all servers of a cluster: the worst of them counts."""

    def __init__(self, servers: RedisServers) -> None:
        self._servers = servers
        self._checked_at: tuple[float, int] | None = None

    def recheck(self) -> None:
        """Check again if the URL asks for a durability: after each new connection, and every few seconds.

        Settings change at any time, and a new connection may lead to a restarted server.
        """
        if self._servers.dsn.durability is None:
            return
        if self._checked_at is not None:
            since_s, made = self._checked_at
            if made == self._servers.opened_count and time.monotonic() - since_s < RECHECK_S:
                return
        self.check()

    def check(self) -> None:
        """Raise an error that names the fix for a server that can't hold the store as the URL asks."""
        servers: list[Mapping[str, str]] = []
        for pool in self._primary_pools():
            found = self._read_settings(pool)
            check_version(found, pool.dsn.shown, waitaof=pool.dsn.waitaof)
            self._check_role(found, pool)
            self._check_eviction(found, pool)
            servers.append(found)
        asked, place = self._servers.dsn.durability, self._servers.dsn.shown
        level = self._durability_of(servers)
        if self._servers.dsn.waitaof and level == "none":
            raise errors.UnsafeStore(
                f"{place} writes no append-only file, so no write can wait for it.",
                hint="Set appendonly yes on the server, or leave out ?waitaof=1.",
                facts={"server": place, "durability": level},
            )
        if asked is not None and DURABILITY_LEVELS.index(level) < DURABILITY_LEVELS.index(asked):
            raise errors.UnsafeStore(
                f"{place} can't hold the durability {asked}: its settings give {level}.",
                hint=f"Set appendonly yes, appendfsync always and {_NO_SYNC_ON_REWRITE} no on the server, or ask for less with"
                f" ?durability={level}.",
                facts={"server": place, "asked": asked, "durability": level},
            )
        self._checked_at = time.monotonic(), self._servers.opened_count

    def check_format(self, key: bytes) -> None:
        """Write the format of a new store; raise NewerStore for a newer one. Only a new store needs memory for this."""
        noted = self._servers.command(key, b"GET", key)
        if noted is None:
            self._servers.command(key, b"SETNX", key, STORE_FORMAT, write=True)
            noted = self._servers.command(key, b"GET", key)
        if (found := serialization.unpack_number(noted)) > STORE_FORMAT:
            raise errors.NewerStore(facts={"format": found})

    def durability(self) -> str:
        return self._durability_of([self._read_settings(pool) for pool in self._primary_pools()])

    def _durability_of(self, servers: Sequence[Mapping[str, str]]) -> str:
        """Return the lowest level of the servers."""
        levels = [durability_of(found, synced=self._servers.dsn.waitaof) for found in servers]
        return min(levels, key=DURABILITY_LEVELS.index)

    def facts(self) -> Mapping[str, Json]:
        every = [self._read_settings(pool) for pool in self._primary_pools()]
        first = every[0]
        return {
            "durability": self._durability_of(every),
            "version": first.get("valkey_version") or first.get("redis_version", ""),
            "product": first.get("server_name", "redis"),
            "servers": len(every),
            "driver": redis.__version__,
            "appendonly": first.get("appendonly", "unknown"),
            "appendfsync": first.get("appendfsync", "unknown"),
            _NO_SYNC_ON_REWRITE: first.get(_NO_SYNC_ON_REWRITE, "unknown"),
            "format": STORE_FORMAT,
        }

    def _primary_pools(self) -> list[RedisConnectionPool]:
        with error_mapping.translate_errors(self._servers.dsn):
            return self._servers.primary_pools()

    def _read_settings(self, pool: RedisConnectionPool) -> dict[str, str]:
        sections = [(b"INFO", name) for name in (b"server", b"replication", b"persistence", b"memory")]  # fmt: skip
        *infos, config = self._run(pool, *sections, (b"CONFIG", b"GET", *_CONFIG_NAMES))
        found: dict[str, str] = {}
        for answer in infos:
            found |= serialization.unpack_info(error_mapping.checked_answer(answer, pool.dsn))
        if not isinstance(config, Exception):
            found |= serialization.unpack_config(config)
        return found

    def _run(self, pool: RedisConnectionPool, *commands: tuple[bytes | str | int, ...]) -> list[object]:
        try:
            return pool.run(commands)
        except error_mapping.DRIVER_ERRORS as error:
            self._servers.forget_pool(pool)
            raise error_mapping.to_error(error, pool.dsn) from error

    def _check_role(self, found: Mapping[str, str], pool: RedisConnectionPool) -> None:
        if found.get("role") == "slave":
            raise errors.StoreReadOnly(
                f"{pool.dsn.shown} is a replica: it takes no writes.",
                hint=f"Name the primary in the URL: {found.get('master_host')}:{found.get('master_port')}.",
                facts={"server": pool.dsn.shown},
            )
        if not self._servers.dsn.cluster and found.get("redis_mode") == "cluster":
            raise errors.InvalidRequest(
                f"{pool.dsn.shown} is part of a cluster.",
                hint="Write redis+cluster:// in the place of redis:// in the URL.",
            )

    def _check_eviction(self, found: Mapping[str, str], pool: RedisConnectionPool) -> None:
        policy = found.get("maxmemory_policy", found.get("maxmemory-policy", "noeviction"))
        if policy != "noeviction":
            raise errors.UnsafeStore(
                f"{pool.dsn.shown} throws data away when its memory is full: maxmemory-policy is {policy}.",
                hint="Set it with: CONFIG SET maxmemory-policy noeviction (and in the server's file).",
                facts={"server": pool.dsn.shown, "policy": policy},
            )

    def rewrite(self) -> None:
        """Have every server rewrite its files, and wait until they are in place."""
        for pool in self._primary_pools():
            found = self._read_settings(pool)
            if found.get("aof_enabled") == "1":
                self._rewrite_file(pool, b"BGREWRITEAOF", "aof_rewrite_in_progress", "aof_last_bgrewrite_status", "aof_rewrite_scheduled")  # fmt: skip
            # Without the right to CONFIG it is not known whether there are snapshots, so there may be.
            if found.get("save", "unknown"):
                self._rewrite_file(pool, b"BGSAVE", "rdb_bgsave_in_progress", "rdb_last_bgsave_status")

    def _rewrite_file(self, pool: RedisConnectionPool, command: bytes, going: str, status: str, *waits: str) -> None:
        until = time.monotonic() + limits.REDIS_REWRITE_WAIT_S
        # A running rewrite may have begun before the erasure: wait for its end, then begin another.
        self._wait_until_idle(pool, (going, *waits), until)
        while isinstance(answer := self._run(pool, (command,))[0], Exception):
            # Another process that erases may have begun one meanwhile: wait for its end, too.
            if not any(words in str(answer) for words in _REWRITE_IN_PROGRESS):
                raise error_mapping.to_error(answer, pool.dsn) from answer
            if time.monotonic() > until:
                raise _rewrite_slow_error(pool) from answer
            time.sleep(RETRY_PAUSE_S)
            self._wait_until_idle(pool, (going, *waits), until)
        found = self._wait_until_idle(pool, (going, *waits), until)
        if found.get(status, "ok") != "ok":
            raise errors.Unavailable(
                f"{pool.dsn.shown} could not write its files anew ({command.decode()}): what was erased may"
                " still be in them.",
                hint="See the server's log and its disk, then erase() once more; a worker does it too.",
                facts={"pending": True},
            )

    def _wait_until_idle(self, pool: RedisConnectionPool, names: tuple[str, ...], until: float) -> dict[str, str]:
        while True:
            (answer,) = self._run(pool, (b"INFO", b"persistence"))
            found = serialization.unpack_info(error_mapping.checked_answer(answer, pool.dsn))
            if not any(found.get(name) == "1" for name in names):
                return found
            if time.monotonic() > until:
                raise _rewrite_slow_error(pool)
            time.sleep(RETRY_PAUSE_S)


def _rewrite_slow_error(pool: RedisConnectionPool) -> errors.StoreBusy:
    return errors.StoreBusy(
        f"{pool.dsn.shown} takes long to write its files anew: what was erased may still be in them.",
        hint="Wait, then erase() once more; a worker does it too.",
        facts={"pending": True},
    )


def check_version(found: Mapping[str, str], shown: str, *, waitaof: bool = False) -> None:
    """Raise UnsafeStore for a server that is too old. Valkey states the version of Redis that it derives from, too."""
    version = found.get("redis_version", "")
    parts: tuple[int, ...] = ()
    with contextlib.suppress(ValueError):
        parts = tuple(int(each) for each in version.split(".")[:2])
    if parts < _VERSION_MIN:
        raise errors.UnsafeStore(
            f"{shown} runs Redis {version or '(unknown)'}: its scripts can't be refused whole.",
            hint="Use Redis 7 or later, or Valkey 8 or later.",
            facts={"server": shown, "version": version},
        )
    if waitaof and parts < _WAITAOF_VERSION_MIN:
        raise errors.UnsafeStore(
            f"{shown} runs Redis {version}, in which a write can't wait until it is on the disk.",
            hint="Use Redis 7.2 or later, or Valkey; or leave out ?waitaof=1.",
            facts={"server": shown, "version": version},
        )


def durability_of(found: Mapping[str, str], *, synced: bool) -> str:
    """Return the durability of these settings. `synced`: every write waits until it is on the disk."""
    if found.get("aof_enabled", "0") != "1" and found.get("appendonly") != "yes":
        return "none"
    always = found.get("appendfsync") == "always" and found.get(_NO_SYNC_ON_REWRITE) == "no"
    if synced or always:
        return "power-loss"
    # Without CONFIG it is known that the file is written, not whether it is synced.
    return "process-crash"
