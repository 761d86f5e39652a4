-- name: reserve
-- Ids first, with the clock (microseconds since 1970) that decides the state of the rows to come.
SELECT nextval('lien.lien_job_id_seq'), CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS bigint) FROM generate_series(1, CAST(:n AS integer));

-- name: enqueue
-- transition: enqueue
-- ON CONFLICT names no index: it also meets the id, when an enqueue of unknown outcome is sent again.
WITH new AS (
    INSERT INTO lien.lien_job (
        id, queue, task, args, headers, priority, available_at, expires_at, state, unique_key, timeout,
        max_failures, max_lost, max_interrupted, backoff_base, backoff_cap, origin
    )
    SELECT
        coalesce(CAST(:id AS bigint), nextval('lien.lien_job_id_seq')), CAST(:queue AS text), CAST(:task AS text),
        CAST(:args AS json), CAST(:headers AS json), CAST(:priority AS smallint), due.at,
        due.at + make_interval(secs => CAST(:expires AS double precision)),
        CASE WHEN due.at <= clock_timestamp() THEN 'runnable' ELSE 'scheduled' END,
        CAST(:unique_key AS text), CAST(:timeout AS double precision), CAST(:max_failures AS integer),
        CAST(:max_lost AS integer), CAST(:max_interrupted AS integer), CAST(:backoff_base AS double precision),
        CAST(:backoff_cap AS double precision), CAST(:origin AS bigint)
    FROM (
        SELECT coalesce(
            CAST(:at AS timestamptz), clock_timestamp() + make_interval(secs => CAST(:delay AS double precision))
        ) AS at
    ) AS due
    ON CONFLICT DO NOTHING
    RETURNING id
)
SELECT new.id, (
    -- A transaction that has gone on for a while may have missed a worker falling asleep: it always tells.
    SELECT pg_notify('lien.lien_channel', CAST(:queue AS text))
    WHERE (SELECT clock_timestamp()) > transaction_timestamp() + interval '100 ms' OR EXISTS (
        SELECT 1 FROM lien.lien_sleeper AS s WHERE s.queue = :queue AND s.until > (SELECT clock_timestamp())
    )
) AS woken
FROM new;

-- name: enqueue_copy
-- transition: enqueue
-- The bulk way in. No row of it has a unique key.
COPY lien.lien_job (
    id, queue, task, args, headers, priority, available_at, expires_at, state, timeout,
    max_failures, max_lost, max_interrupted, backoff_base, backoff_cap, origin
) FROM STDIN;

-- name: find_unique
SELECT id FROM lien.lien_job
WHERE queue = :queue AND coalesce(tenant, '') = coalesce(CAST(:tenant AS text), '') AND unique_key = :unique_key;

-- name: find_finished
-- Of the ids given, those that are already in the history: their first enqueue had been committed after all.
SELECT id FROM lien.lien_history WHERE id = ANY(CAST(:ids AS bigint[]));

-- name: wake
-- Tells the workers asleep on these queues; the server folds equal notifications of one transaction into one.
SELECT pg_notify('lien.lien_channel', q.queue) FROM unnest(CAST(:queues AS text[])) AS q (queue)
WHERE (SELECT clock_timestamp()) > transaction_timestamp() + interval '100 ms' OR EXISTS (
    SELECT 1 FROM lien.lien_sleeper AS s WHERE s.queue = q.queue AND s.until > (SELECT clock_timestamp())
);
