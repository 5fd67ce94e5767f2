-- From version 3 of a store to version 4: notes.

-- Small records beside the log, which change in place. `tenant` is its name: a note can be there before its
-- tenant's first event. The row without a name counts the versions of the tenant's notes.
CREATE TABLE notes (
    tenant  TEXT NOT NULL,
    name    TEXT NOT NULL,
    version INTEGER NOT NULL,
    value   BLOB NOT NULL,
    mark    BLOB NOT NULL,
    PRIMARY KEY (tenant, name)
) WITHOUT ROWID;
