-- From version 4 of a store to version 5: events that were erased.

-- Each event whose payload and salt are gone. `notice` is the key of the event that says so, `cause` that of the
-- event because of which it went (0: its whole stream did), `payload` what is read in its place, if anything is.
CREATE TABLE erased (
    event   INTEGER PRIMARY KEY,
    notice  INTEGER NOT NULL,
    cause   INTEGER NOT NULL,
    payload BLOB,
    mark    BLOB NOT NULL
);
