-- name: prepare_partitions
SELECT lien.lien_prepare_partitions(CAST(:days AS integer));

-- name: sleep
-- This worker sleeps on these queues for so many seconds: an enqueue notifies while a row stands.
INSERT INTO lien.lien_sleeper (queue, worker, until)
SELECT q, CAST(:worker AS text), clock_timestamp() + make_interval(secs => CAST(:seconds AS double precision))
FROM unnest(CAST(:queues AS text[])) AS q
ORDER BY q
ON CONFLICT (queue, worker) DO UPDATE SET until = excluded.until;

-- name: awake
DELETE FROM lien.lien_sleeper WHERE worker = CAST(:worker AS text);

-- name: dead_sleepers
DELETE FROM lien.lien_sleeper WHERE until < (SELECT clock_timestamp()) - interval '10 minutes';
