-- name: reserve
-- The last of n new ids, with the clock that decides the state of the rows to come.
UPDATE sqlite_sequence SET seq = seq + :n WHERE name = 'lien_job' RETURNING seq, :now;

-- name: enqueue
-- transition: enqueue
-- ON CONFLICT names no index: it also meets the id, when an enqueue of unknown outcome is sent again.
INSERT INTO lien_job (
    id, queue, task, args, headers, priority, available_at, created_at, expires_at, state, unique_key, timeout,
    max_failures, max_lost, max_interrupted, backoff_base, backoff_cap, origin
)
SELECT
    :id, :queue, :task, :args, :headers, :priority, due.at, :now, due.at + :expires_us,
    CASE WHEN due.at <= :now THEN 'runnable' ELSE 'scheduled' END, :unique_key, :timeout,
    :max_failures, :max_lost, :max_interrupted, :backoff_base, :backoff_cap, :origin
FROM (SELECT coalesce(:at_us, :now + :delay_us) AS at) AS due
WHERE true
ON CONFLICT DO NOTHING
RETURNING id;

-- name: enqueue_copy
-- transition: enqueue
-- The bulk way in, a row of values at a time. No row of it has a unique key.
INSERT INTO lien_job (
    id, queue, task, args, headers, priority, available_at, created_at, expires_at, state, timeout,
    max_failures, max_lost, max_interrupted, backoff_base, backoff_cap, origin
)
VALUES (
    ?, ?, ?, ?, ?, ?, ?, ?, ?, CASE WHEN ? THEN 'runnable' ELSE 'scheduled' END, ?, ?, ?, ?, ?, ?, ?
);

-- name: find_unique
SELECT id FROM lien_job
WHERE queue = :queue AND coalesce(tenant, '') = coalesce(:tenant, '') AND unique_key = :unique_key;

-- name: find_finished
-- Of the ids given, those that are already in the history: their first enqueue had been committed after all.
SELECT id FROM lien_history WHERE id IN (SELECT value FROM json_each(:ids));
