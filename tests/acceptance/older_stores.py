"""Stores as older versions of Limpet left them."""

from pathlib import Path

from limpet.stores.sqlite import database

_UNDONE = {
    4: "DROP TABLE erased;",
    3: "DROP TABLE notes;",
    2: "DROP VIEW frames; DROP VIEW suspended_frames; DROP TABLE bases;",
    1: "DROP TABLE blobs; DROP TABLE blob_uses; DROP VIEW messages;",
}


def lowered(path: Path, version: int) -> None:
    """Undo the schemas after a version in a store that uses nothing of them."""
    connection = database.connect(path, write=True)
    with connection:
        for step in range(database.SCHEMA_VERSION - 1, version - 1, -1):
            connection.execute(_UNDONE[step])
        if version == 1:
            connection.execute("CREATE VIEW messages" + _view(database.read_sql_file("schema.sql")))
        connection.pragma("user_version", version)
    connection.close()


def _view(schema: str) -> str:
    return schema.split("CREATE VIEW messages", 1)[1]
