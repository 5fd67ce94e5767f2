"""Who may use a store on PostgreSQL, found out before anything is made; and a store that has lost its version."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from limpet import errors
from limpet.stores.server.postgres import connections, exists, schema
from limpet.stores.server.postgres import open_store as open_
from tests.acceptance.stores.test_postgres_store import fill, with_options
from tests.servers import postgres

pytestmark = pytest.mark.req("A-20")


@pytest.fixture
def own() -> Iterator[str]:
    with postgres.database() as url:
        open_(url).close()
        yield url


@pytest.mark.parametrize("role", ["postgres", "mighty"])
def test_a_role_that_can_not_be_used_makes_nothing(role: str):
    with postgres.database() as url:
        postgres.run(url, "DROP ROLE IF EXISTS mighty")
        postgres.run(url, "CREATE ROLE mighty; GRANT postgres TO mighty")
        with pytest.raises(errors.UnsafeStore, match=f"role {role}"):
            open_(with_options(url, role=role))
        assert not schema.store_exists(connections.parse_url(url))
        with closing(open_(url)) as store:
            fill(store, "red")
        postgres.run(url, "REVOKE postgres FROM mighty; DROP ROLE mighty")


def test_a_role_that_a_store_was_not_made_for_is_told_what_it_lacks(own: str):
    postgres.run(own, "DROP ROLE IF EXISTS stranger")
    postgres.run(own, "CREATE ROLE stranger")
    with pytest.raises(errors.StoreReadOnly, match="stranger may not use the schema") as caught:
        open_(with_options(own, role="stranger"))
    assert "?role=" in caught.value.hint
    postgres.run(own, "GRANT limpet_app TO stranger")
    with closing(open_(with_options(own, role="stranger"))) as store:
        fill(store, "red")
    postgres.run(own, "DROP ROLE stranger")


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE limpet.store SET value = 'x' WHERE name = 'schema'",
        "UPDATE limpet.store SET value = '-1' WHERE name = 'schema'",
        "UPDATE limpet.store SET value = '' WHERE name = 'schema'",
        "DELETE FROM limpet.store WHERE name = 'schema'",
    ],
)
def test_a_store_that_has_lost_its_version_is_damaged(own: str, statement: str):
    postgres.run(own, statement)
    for door in (open_, exists):
        with pytest.raises(errors.Corrupt, match="which version") as caught:
            door(own)
        assert "'schema'" in caught.value.hint
