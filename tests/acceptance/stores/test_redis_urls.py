"""Which URLs lead to a Redis server, and what is said of those that lead nowhere."""

from __future__ import annotations

import pytest
import redis

import limpet
from limpet import errors
from limpet.stores.server import redis as ours
from limpet.stores.server.redis import connections, error_mapping
from tests.acceptance.stores.test_redis_errors import refused, said
from tests.servers import valkey


def test_a_server_that_is_away():
    port = valkey.free_port()
    refused(f"redis://127.0.0.1:{port}", errors.Unavailable, "does not answer", "host and port")
    refused(f"redis+cluster://127.0.0.1:{port}", errors.Unavailable, "does not answer")
    refused("redis://no-such-host.invalid", errors.Unavailable, "by the name of its host", "DNS")


def test_a_url_that_no_server_there_could_ever_answer():
    url = valkey.shared().url
    host = url.removeprefix("redis://")
    refused(f"{url}/99", errors.InvalidRequest, "no database of that number", "/0")
    refused(f"redis+cluster://{host}", errors.InvalidRequest, "single server", "redis:// in")
    refused(f"rediss://{host}?timeout_s=0.3", errors.Unavailable, "in time", "no TLS")
    error = error_mapping.to_error(
        redis.ConnectionError("[SSL: WRONG_VERSION_NUMBER] wrong version number"), connections.parse_url("rediss://x")
    )
    assert isinstance(error, errors.InvalidRequest)
    assert said(error, "speaks no TLS", "redis://")


def test_no_error_tells_a_password():
    for url in (
        "redis://ann:s3cret@127.0.0.1:1",
        "redis://ann:s3cret@127.0.0.1:1/x",
        "redis://ann:s3cret@127.0.0.1:1?x=1",
    ):
        with pytest.raises(errors.Error) as caught:
            ours.open_store(url)
        assert "s3cret" not in f"{caught.value}{caught.value.facts}"


def test_a_certificate_that_nobody_here_trusts():
    error = error_mapping.to_error(
        redis.ConnectionError("[SSL: CERTIFICATE_VERIFY_FAILED] self-signed"), connections.parse_url("rediss://x")
    )
    assert isinstance(error, errors.InvalidRequest)
    assert said(error, "not trusted", "?ca=")


@pytest.mark.parametrize(
    "url",
    [
        "redis://host:x", "redis://host/one", "redis+cluster://host/1", "redis://host?prefix=a{b}",
        "redis://host?prefix=", "redis://host?durability=much", "redis://host?waitaof=yes",
        "redis://host?timeout_s=0", "redis://host?timeout_s=nan", "redis://host?connections=0", "redis://host?connections=0.5", "redis://host?unknown=1", "redis://host?ca=x",
    ],
)  # fmt: skip
def test_a_url_that_is_none(url: str):
    with pytest.raises(errors.InvalidRequest):
        limpet.connect(url)
