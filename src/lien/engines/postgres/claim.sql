-- name: settings
-- One plan for each statement, and no wait for a lock without end. For one transaction only, where a pooler stands
-- between: there a session is not ours.
SELECT set_config('plan_cache_mode', 'force_generic_plan', true), set_config('lock_timeout', '5s', true);

-- name: promote
-- transition: promote
WITH due AS MATERIALIZED (
    SELECT id FROM lien.lien_job
    WHERE state = 'scheduled' AND available_at <= (SELECT clock_timestamp())
        AND available_at >= CAST(:floor AS timestamptz)
    ORDER BY available_at
    LIMIT CAST(:limit AS integer)
    FOR UPDATE SKIP LOCKED
), moved AS (
    UPDATE lien.lien_job SET state = 'runnable', reason = NULL
    WHERE id = ANY(ARRAY(SELECT id FROM due)) AND state || '' = 'scheduled'
    RETURNING available_at
)
SELECT
    (SELECT count(*) FROM moved),
    (SELECT min(available_at) FROM moved),
    (
        SELECT extract(epoch FROM available_at - clock_timestamp())::double precision FROM lien.lien_job
        WHERE state = 'scheduled' AND available_at > (SELECT clock_timestamp()) ORDER BY available_at LIMIT 1
    );

-- name: claim
-- transition: claim, park
-- The hot statement. Each lane is one walk along lien_job_runnable from its floor; the lateral walks are lazy, so a
-- later lane is not touched when the earlier ones filled the limit. Rows are locked in `pick` and looked at again
-- there; everything after works on those rows alone, through arrays: a join with `pick` could be planned as a loop
-- that picks anew for every row. The fence is drawn after the rows are locked: drawn earlier, a claimer that stalls
-- here could win a row later than somebody with a larger fence. Rows of tasks that this worker does not know are
-- parked by the same statement, so that they cannot stand in front of the others.
WITH pick AS MATERIALIZED (
    SELECT j.id, j.task = ANY(CAST(:tasks AS text[])) AS known
    FROM unnest(
        CAST(:queues AS text[]), CAST(:priorities AS smallint[]),
        CAST(:floor_ats AS timestamptz[]), CAST(:floor_ids AS bigint[])
    ) AS lane (queue, priority, floor_at, floor_id)
    CROSS JOIN LATERAL (
        SELECT id, task FROM lien.lien_job
        WHERE state = 'runnable' AND tenant IS NULL AND ordering_key IS NULL
            AND queue = lane.queue AND priority = lane.priority
            AND (available_at, id) >= (lane.floor_at, lane.floor_id)
            AND (expires_at IS NULL OR expires_at > (SELECT clock_timestamp()))
        ORDER BY available_at, id
        LIMIT CAST(:limit AS integer)
        FOR UPDATE SKIP LOCKED
    ) AS j
    LIMIT CAST(:limit AS integer)
), drawn AS MATERIALIZED (
    SELECT nextval('lien.lien_fence') AS fence FROM (SELECT count(*) AS n FROM pick) AS locked WHERE locked.n > 0
), parked AS (
    UPDATE lien.lien_job
    SET state = 'scheduled', reason = 'unknown_task',
        available_at = clock_timestamp()
            + LEAST(interval '5 minutes', GREATEST(interval '15 seconds', clock_timestamp() - created_at))
    WHERE id = ANY(ARRAY(SELECT id FROM pick WHERE NOT known)) AND state || '' = 'runnable'
    RETURNING task
), claimed AS (
    UPDATE lien.lien_job
    SET state = 'claimed', attempt = LEAST(attempt, 2147483646) + 1, claim_token = CAST(:token AS uuid),
        fence = (SELECT fence FROM drawn), claimed_by = CAST(:worker AS text), claimed_at = clock_timestamp(),
        lease_expires_at = clock_timestamp() + make_interval(secs => CAST(:lease AS double precision))
    WHERE id = ANY(ARRAY(SELECT id FROM pick WHERE known)) AND state || '' = 'runnable'
        AND fence < (SELECT fence FROM drawn)
    RETURNING id, attempt, task, args::text, queue, priority, available_at, fence, failures, max_failures, lost,
        timeout, backoff_base, backoff_cap
)
SELECT claimed.*, 0, 0 FROM claimed
UNION ALL
SELECT NULL, NULL, (SELECT min(task) FROM parked), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
    (SELECT count(*) FROM parked)::integer, (SELECT count(*) FROM pick)::integer;

-- name: raise_fences
-- After a restore without its sequences, or a failover that lost some values: past every fence that a row has seen.
SELECT setval('lien.lien_fence', GREATEST(nextval('lien.lien_fence'), (SELECT max(fence) FROM lien.lien_job)));

-- name: park
-- transition: park
-- Clears what an unknown task left in front of a lane, more at a time than a claim would.
WITH pick AS MATERIALIZED (
    SELECT id FROM lien.lien_job
    WHERE state = 'runnable' AND tenant IS NULL AND ordering_key IS NULL
        AND queue = :queue AND priority = CAST(:priority AS smallint) AND NOT task = ANY(CAST(:tasks AS text[]))
    ORDER BY available_at, id
    LIMIT CAST(:limit AS integer)
    FOR UPDATE SKIP LOCKED
)
UPDATE lien.lien_job
SET state = 'scheduled', reason = 'unknown_task',
    available_at = clock_timestamp()
        + LEAST(interval '5 minutes', GREATEST(interval '15 seconds', clock_timestamp() - created_at))
WHERE id = ANY(ARRAY(SELECT id FROM pick)) AND state || '' = 'runnable'
RETURNING id;

-- name: unpark
-- transition: unpark
WITH pick AS MATERIALIZED (
    SELECT id FROM lien.lien_job
    WHERE reason = 'unknown_task' AND state || '' = 'scheduled' AND task = ANY(CAST(:tasks AS text[]))
    ORDER BY id
    LIMIT CAST(:limit AS integer)
    FOR UPDATE SKIP LOCKED
)
UPDATE lien.lien_job SET state = 'runnable', reason = NULL, available_at = clock_timestamp()
WHERE id = ANY(ARRAY(SELECT id FROM pick)) AND state || '' = 'scheduled' AND task = ANY(CAST(:tasks AS text[]))
RETURNING id;
