"""Erasing and rebuilding on Redis: what is left in the keys and files of a server."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

import limpet
from limpet import Message, errors
from limpet.stores.server import redis as ours
from limpet.stores.server.driver import FeedHead, TenantChange
from limpet.stores.server.redis import serialization, settings
from limpet.stores.server.redis.driver import RedisRebuild
from limpet.testing.store_contract import erasure_contract
from limpet.testing.store_contract.harness import TENANT, commit_all, make_append, verify_store, write
from tests.contract.test_redis import client_of, driver_of
from tests.servers import valkey

AWKWARD = "*?[]{}:\r\n\0\\^$ é 😀 {x}"
VISIBLE = "*?[]{}:\\^$ é 😀 {x}"


@pytest.fixture(params=["server", "cluster"])
def url(request: pytest.FixtureRequest) -> str:
    return valkey.fresh(valkey.shared_cluster().url if request.param == "cluster" else "")


@pytest.mark.req("A-20")
def test_what_was_erased_is_in_no_file_of_the_server():
    with valkey.server(save="3600 1") as server, limpet.connect(server.url) as lp:
        session = lp.sessions.create_session(user_id="ada", title="canary-1")
        session.add_message(Message(role="user", content="canary-2 " + "canary-3 " * 9_000))
        kept = lp.sessions.create_session(user_id="bob")
        kept.add_message(Message(role="user", content="stays"))
        with server.client() as client:
            client.bgsave()
        assert b"canary-2" in server.files()
        lp.admin.erase(session_id=session.id)
        left = server.files()
        assert b"canary" not in left
        assert [m.content for m in lp.sessions.get_session(kept.id).messages] == ["stays"]
        assert lp.admin.verify().ok


def test_what_the_store_has_scrubbed_is_in_no_file_of_the_server():
    with valkey.server() as server, contextlib.closing(ours.open_store(server.url)) as store:
        erasure_contract.append_events(
            store, "a", erasure_contract.claim_event("canary-claim", "canary-word", (b"canary-blob",))
        )
        erasure_contract.append_events(store, "b", erasure_contract.claim_event("c1", "stays"))
        erasure_contract.erase_all(store, erasure_contract.stream_erasure(store, "a", todo=b"todo"))
        assert b"canary-word" in server.files()
        store.scrub(b"todo")
        assert b"canary" not in server.files()
        assert store.pending_erasures() is None
        assert verify_store(store).ok


def test_a_scrub_that_was_broken_off_is_done_by_the_next(monkeypatch: pytest.MonkeyPatch):
    with contextlib.closing(ours.open_store(valkey.fresh())) as store:
        erasure_contract.append_events(store, "a", erasure_contract.claim_event("c1", "one"))
        erasure_contract.erase_all(store, erasure_contract.stream_erasure(store, "a", todo=b"first\n"))

        def busy(_: settings.RedisSettings) -> None:
            raise errors.StoreBusy("it takes long.")

        for _ in range(2):
            with monkeypatch.context() as patch:
                patch.setattr(settings.RedisSettings, "rewrite", busy)
                with pytest.raises(errors.StoreBusy):
                    store.scrub(store.pending_erasures() or b"")
            assert store.pending_erasures() == b"\nfirst\n"
        erasure_contract.append_events(store, "b", erasure_contract.claim_event("c2", "two"))
        done = store.pending_erasures()
        assert done is not None
        erasure_contract.erase_all(store, erasure_contract.stream_erasure(store, "b", todo=b"second\n"))
        store.scrub(done, b"left\n")
        assert store.pending_erasures() == b"left\nsecond\n", "what came since stays"
        store.scrub(store.pending_erasures() or b"")
        assert store.pending_erasures() is None


def test_what_rebuilds_have_left_is_in_no_file_after_an_erasure(monkeypatch: pytest.MonkeyPatch):
    """Neither what one has replaced, nor what another, still under way, has made by now."""
    with valkey.server() as server, contextlib.closing(ours.open_store(server.url)) as store:
        erasure_contract.append_events(store, "a", erasure_contract.claim_event("canary-claim", "canary-word"))
        erasure_contract.append_events(store, "b", erasure_contract.claim_event("c1", "stays"))
        # A process that died cleans nothing away.
        monkeypatch.setattr(RedisRebuild, "_clean", lambda *_: None)
        list(store.rebuild(erasure_contract.derive_claims))
        driver = driver_of(store)
        begun = driver.head(TENANT)
        derived = tuple(driver.projections(TENANT))
        at = f"{server.url}?prefix=limpet"

        def parts() -> Iterator[TenantChange]:
            part = TenantChange(tenant=TENANT, before=begun, after=begun, projections=derived)
            yield part
            assert len(derived_keys(at)) == 3
            erasure_contract.erase_all(store, erasure_contract.stream_erasure(store, "a", todo=b"todo"))
            store.scrub(b"todo")
            assert b"canary" not in server.files()
            assert len(derived_keys(at)) == 1
            yield part

        assert not driver.replace_derived(TENANT, begun, parts()), "it has to stop"
        # Nor may one begin that was derived before.
        assert not driver.replace_derived(TENANT, begun, parts())
        assert b"canary" not in server.files()
        assert store.pending_erasures() is None
        assert verify_store(store).ok


def test_where_settings_may_not_be_asked_the_snapshot_is_written_anew_too():
    with valkey.server(save="3600 1") as server:
        with server.client() as client:
            for name, less in (("shy", ["-config"]), ("meek", ["-config", "-bgsave"])):
                client.acl_setuser(name, enabled=True, passwords=["+right"], categories=["+@all"], commands=less, keys=["*"], channels=["*"])  # fmt: skip
        host = server.url.removeprefix("redis://")
        with contextlib.closing(ours.open_store(f"redis://meek:right@{host}")) as store:
            erasure_contract.append_events(store, "a", erasure_contract.claim_event("c1", "canary-word"))
            with server.client() as client:
                client.save()
            erasure_contract.erase_all(store, erasure_contract.stream_erasure(store, "a", todo=b"todo"))
            with pytest.raises(errors.StoreReadOnly, match="bgsave"):
                store.scrub(b"todo")
            assert store.pending_erasures() is not None
        with contextlib.closing(ours.open_store(f"redis://shy:right@{host}")) as store:
            store.scrub(b"todo")
            assert b"canary" not in server.files()
            assert store.pending_erasures() is None


def test_a_rebuild_is_not_put_into_place_if_others_write_at_the_last_moment(url: str):
    with contextlib.closing(ours.open_store(url)) as store:
        commit_all(store, make_append(write("a", 0, b"1", claims=(("c", 0),))))
        driver = driver_of(store)

        class Late(RedisRebuild):
            def _script(self, name: str, *words: bytes | str | int) -> object:
                if name == "install_rebuild":
                    commit_all(store, make_append(write("a", 1, b"2")))
                return super()._script(name, *words)

        rebuild = Late(driver._servers, driver._names, TENANT, driver.head(TENANT))
        assert not rebuild.replace(iter(()))
        assert store.find_claim(TENANT, "a", "c") == 1
        assert derived_keys(url) == {b"d0"}


def test_what_a_dead_rebuild_left_is_cleaned_away(url: str):
    with contextlib.closing(ours.open_store(url)) as store:
        commit_all(store, make_append(write("a", 0, b"1", claims=(("c", 0),))))
        driver = driver_of(store)
        head = driver.head(TENANT)

        def some() -> Iterator[TenantChange]:
            yield TenantChange(tenant=TENANT, before=FeedHead(), after=FeedHead(), claims=((1, "c", 1),))
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            driver.replace_derived(TENANT, head, some())
        assert derived_keys(url) == {b"d0"}
        # A process that died can't clean up after itself.
        key = driver._names.head(TENANT)
        number = driver._servers.script("begin_rebuild", key, head.position, head.link, head.epoch)
        part = TenantChange(tenant=TENANT, before=FeedHead(), after=FeedHead(), claims=((1, "left", 1),))
        assert driver._servers.script("write_rebuild", key, str(number), serialization.pack_derived(part)) == 1
        assert len(derived_keys(url)) == 2
        builds = driver._names.tenant_prefix(TENANT) + b"builds"
        driver._servers.command(builds, b"ZADD", builds, 1, str(number), write=True)
        assert driver.replace_derived(TENANT, head, iter([part]))
        assert len(derived_keys(url)) == 1
        assert driver.claims(TENANT, ["c", "left"], [1]) == [(1, "left", 1)]
        assert not driver.replace_derived(TENANT, head, iter([part])), "the head has another epoch by now"


def derived_keys(url: str) -> set[bytes]:
    """Return the numbers under which something derived lies."""
    with client_of(url) as client:
        prefix = url.partition("prefix=")[2]
        keys = [key.rsplit(b"}:")[-1] for key in client.scan_iter(f"{prefix}:*")]
    return {key.partition(b":")[0] for key in keys if key[:1] == b"d" and key[1:2].isdigit()}
