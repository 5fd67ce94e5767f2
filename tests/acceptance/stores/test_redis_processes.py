"""Several processes on one Redis: who erases at the same time waits, and a list that was lost comes back."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from redis.exceptions import ResponseError

import limpet
from limpet import Message, errors, limits
from limpet.stores.server.redis import connections, settings
from limpet.stores.server.redis.connections import RedisServers
from limpet.stores.server.redis.serialization import RedisKeys
from tests.contract.test_redis import client_of
from tests.servers import valkey


@pytest.fixture(params=["server", "cluster"])
def url(request: pytest.FixtureRequest) -> str:
    return valkey.fresh(valkey.shared_cluster().url if request.param == "cluster" else "")


def test_those_who_have_files_written_anew_at_once_wait_for_one_another():
    with valkey.server(save="3600 1") as server:
        together = threading.Barrier(6, timeout=300)

        def rewrite(_number: int) -> int:
            with contextlib.closing(RedisServers(connections.parse_url(server.url))) as servers:
                for _ in range(3):
                    together.wait()
                    settings.RedisSettings(servers).rewrite()
            return 3

        with ThreadPoolExecutor(6) as pool:
            assert list(pool.map(rewrite, range(6))) == [3] * 6


def test_what_keeps_a_server_from_writing_its_files_anew_is_said(monkeypatch: pytest.MonkeyPatch):
    with valkey.server() as server, contextlib.closing(RedisServers(connections.parse_url(server.url))) as servers:
        run = settings.RedisSettings._run

        def busy(self: settings.RedisSettings, link: Any, *commands: Any) -> list[object]:
            if commands == ((b"BGREWRITEAOF",),):
                return [ResponseError("Background append only file rewriting already in progress")]
            return run(self, link, *commands)

        monkeypatch.setattr(settings.RedisSettings, "_run", busy)
        monkeypatch.setattr(limits, "REDIS_REWRITE_WAIT_S", 0.2)
        with pytest.raises(errors.StoreBusy, match="takes long") as caught:
            settings.RedisSettings(servers).rewrite()
        assert caught.value.facts["pending"] is True


def test_a_list_of_tenants_that_was_lost_comes_back_with_whoever_writes_next(url: str):
    with limpet.connect(url) as lp:
        lp.sessions.create_session("trip").add_message(Message(role="user", content="Oslo?"))
    names = RedisKeys(connections.parse_url(url).prefix)
    with client_of(url) as client:
        client.delete(names.tenants)
        with limpet.connect(url) as lp:
            lp.sessions.get_session("trip").add_message(Message(role="user", content="Bergen?"))
            assert lp.admin.verify().ok and lp.admin.status()["tenants"] == 1
        assert client.smembers(names.tenants) == {b"default"}


def test_a_head_or_a_list_that_is_lost_is_damage_not_an_empty_store(url: str, tmp_path: Path):
    with limpet.connect(url) as lp:
        lp.sessions.create_session("trip").add_message(Message(role="user", content="Oslo?"))
    names = RedisKeys(connections.parse_url(url).prefix)
    with client_of(url) as client:
        client.delete(names.tenants)
        with limpet.connect(url) as lp:
            assert any("is in no list" in fault for fault in lp.admin.verify().faults)
            lp.admin.rebuild()
            assert lp.admin.verify().ok
        client.delete(names.head("default"))
        with limpet.connect(url) as lp:
            assert any("but it goes on" in fault for fault in lp.admin.verify().faults)
            with pytest.raises(errors.Corrupt):
                lp.admin.rebuild()
            with pytest.raises(errors.Corrupt):
                lp.admin.backup(tmp_path / "copy.db")
