-- From version 1 of a store to version 2: blobs.

-- Large content that payloads refer to. A row needs no mark: its hash proves its content.
CREATE TABLE blobs (
    tenant  INTEGER NOT NULL,
    hash    BLOB NOT NULL,
    content BLOB NOT NULL,
    UNIQUE (tenant, hash)
);

-- Which events refer to which blobs: derived from the payloads.
CREATE TABLE blob_uses (
    event INTEGER NOT NULL,
    hash  BLOB NOT NULL,
    PRIMARY KEY (event, hash)
) WITHOUT ROWID;

-- A message of schema 2 has hashes in place of its large texts. Of a content, the text is put back.
DROP VIEW messages;
CREATE VIEW messages AS
WITH stored AS (
    SELECT t.number, t.name AS tenant, substr(s.name, 9) AS session_id, e.key, e.version,
           CASE json_extract(CAST(e.header AS TEXT), '$[2]')
               WHEN 1 THEN CAST(e.payload AS TEXT)
               ELSE json_extract(CAST(e.payload AS TEXT), '$.message')
           END AS json
    FROM events AS e JOIN streams AS s ON s.key = e.stream JOIN tenants AS t ON t.number = s.tenant
    WHERE json_extract(CAST(e.header AS TEXT), '$[1]') = 'session.message_added' AND e.payload IS NOT NULL
), read AS (
    SELECT *, coalesce(json_extract(json, '$.role'),
                       json_extract(json, '$.openai.role'),
                       json_extract(json, '$.anthropic.role')) AS role,
              coalesce(json_extract(json, '$.content'),
                       json_extract(json, '$.openai.content'),
                       json_extract(json, '$.anthropic.content')) AS content
    FROM stored
)
SELECT tenant, session_id, version, json_extract(json, '$.id') AS id, role,
       coalesce((SELECT CAST(b.content AS TEXT)
                 FROM blob_uses AS u JOIN blobs AS b ON b.tenant = read.number AND b.hash = u.hash
                 WHERE u.event = read.key AND lower(hex(u.hash)) = read.content), content) AS content,
       json
FROM read;
