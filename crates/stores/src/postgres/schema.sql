CREATE SCHEMA IF NOT EXISTS {schema};

-- What all nodes share: one row.
CREATE TABLE {schema}.store (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    version integer NOT NULL,
    secret bytea NOT NULL,
    -- No smaller than the largest fence of all keys whose rows were deleted.
    fence_floor bigint NOT NULL DEFAULT 0,
    -- Until when no node is considered dead, in milliseconds since 1970.
    grace_until bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);

-- One row for each key that is held, waited for, or was released a short time ago. Names are in the order of their bytes.
CREATE TABLE {schema}.locks (
    name text COLLATE "C" PRIMARY KEY,
    state json NOT NULL DEFAULT '{}',
    fence bigint NOT NULL DEFAULT 0,
    holders integer NOT NULL DEFAULT 0,
    leases integer NOT NULL DEFAULT 0,
    waiters integer NOT NULL DEFAULT 0,
    -- When a sweep has to visit the row, in milliseconds since 1970.
    due bigint
) WITH (
    -- Room for new versions of a row beside the old one, so that its index entries stay (HOT).
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0
);
CREATE INDEX locks_due ON {schema}.locks (due);

-- When each node last showed that it lives, in milliseconds since 1970.
CREATE TABLE {schema}.nodes (
    id text PRIMARY KEY,
    seen bigint NOT NULL
) WITH (fillfactor = 50);

CREATE VIEW {schema}.held AS
SELECT
    l.name,
    h.lease ->> 'owner' AS owner,
    h.lease ->> 'caller' AS caller,
    h.lease ->> 'note' AS note,
    lpad(h.lease ->> 'fence', 15, '0') AS fence,
    to_timestamp((h.lease ->> 'acquired_at')::bigint / 1000.0) AS acquired_at,
    to_timestamp((h.lease ->> 'expires_at')::bigint / 1000.0) AS expires_at,
    CASE WHEN h.lease -> 'locks' ->> l.name ~ '^[0-9]+$'
        THEN 'limit ' || (h.lease -> 'locks' ->> l.name)
        ELSE h.lease -> 'locks' ->> l.name
    END AS kind,
    l.waiters
FROM {schema}.locks AS l
CROSS JOIN LATERAL (
    SELECT holder -> 'lease' AS lease
    FROM json_array_elements(l.state -> 'holders') AS holder
) AS h
-- Not the calls that can be cancelled, which are leases, too.
WHERE l.holders > 0 AND l.name LIKE 'lock:%'
AND (h.lease ->> 'expires_at')::bigint > floor(extract(epoch FROM clock_timestamp()) * 1000)
ORDER BY l.name, fence;
