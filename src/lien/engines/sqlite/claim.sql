-- name: look
-- Whether a write would find anything: due jobs, the seconds until the next one, runnable jobs of some lane. Idle
-- polls end here and never ask for the write lock; all of it is decided again by those who hold it.
SELECT
    EXISTS (
        SELECT 1 FROM lien_job WHERE state = 'scheduled' AND available_at <= :now AND available_at >= :promote_floor
    ),
    (
        SELECT (available_at - :now) / 1000000.0 FROM lien_job
        WHERE state = 'scheduled' AND available_at > :now ORDER BY available_at LIMIT 1
    ),
    EXISTS (
        SELECT 1 FROM json_each(:lanes) AS lane
        WHERE EXISTS (
            SELECT 1 FROM lien_job
            WHERE state = 'runnable' AND tenant IS NULL AND ordering_key IS NULL
                AND queue = json_extract(lane.value, '$[0]') AND priority = json_extract(lane.value, '$[1]')
                AND (available_at, id) >= (json_extract(lane.value, '$[2]'), json_extract(lane.value, '$[3]'))
                AND (expires_at IS NULL OR expires_at > :now)
        )
    );

-- name: promote
-- transition: promote
UPDATE lien_job SET state = 'runnable', reason = NULL
WHERE id IN (
        SELECT id FROM lien_job
        WHERE state = 'scheduled' AND available_at <= :now AND available_at >= :floor
        ORDER BY available_at
        LIMIT :limit
    )
    AND state || '' = 'scheduled' AND available_at <= :now
RETURNING available_at;

-- name: next_due
SELECT (available_at - :now) / 1000000.0 FROM lien_job
WHERE state = 'scheduled' AND available_at > :now ORDER BY available_at LIMIT 1;

-- name: claim_pick
-- One lane, walked along lien_job_runnable from its floor. Jobs of unknown tasks are picked too: they are parked, so
-- that they cannot stand in front of the others.
SELECT id FROM lien_job
WHERE state = 'runnable' AND tenant IS NULL AND ordering_key IS NULL
    AND queue = :queue AND priority = :priority
    AND (available_at, id) >= (:floor_at, :floor_id)
    AND (expires_at IS NULL OR expires_at > :now)
ORDER BY available_at, id
LIMIT :limit;

-- name: claim_fence
-- Drawn inside the claiming transaction, and only when rows were picked.
UPDATE lien_fence SET value = value + 1 WHERE one = 1 RETURNING value;

-- name: claim
-- transition: claim
UPDATE lien_job
SET state = 'claimed', attempt = min(attempt, 2147483646) + 1, claim_token = :token, fence = :fence,
    claimed_by = :worker, claimed_at = :now, lease_expires_at = :now + :lease_us
WHERE id IN (SELECT value FROM json_each(:ids)) AND task IN (SELECT value FROM json_each(:tasks))
    AND state || '' = 'runnable' AND fence < :fence
RETURNING id, attempt, task, args, queue, priority, available_at, fence, failures, max_failures, lost, timeout,
    backoff_base, backoff_cap;

-- name: claim_park
-- transition: park
-- What a claim picked and does not know.
UPDATE lien_job
SET state = 'scheduled', reason = 'unknown_task',
    available_at = :now + min(300000000, max(15000000, :now - created_at))
WHERE id IN (SELECT value FROM json_each(:ids)) AND task NOT IN (SELECT value FROM json_each(:tasks))
    AND state || '' = 'runnable'
RETURNING task;

-- name: park
-- transition: park
-- Clears what an unknown task left in front of a lane, more at a time than a claim would.
UPDATE lien_job
SET state = 'scheduled', reason = 'unknown_task',
    available_at = :now + min(300000000, max(15000000, :now - created_at))
WHERE id IN (
        SELECT id FROM lien_job
        WHERE state = 'runnable' AND tenant IS NULL AND ordering_key IS NULL
            AND queue = :queue AND priority = :priority AND task NOT IN (SELECT value FROM json_each(:tasks))
        ORDER BY available_at, id
        LIMIT :limit
    )
    AND state || '' = 'runnable'
RETURNING id;

-- name: unpark
-- transition: unpark
UPDATE lien_job SET state = 'runnable', reason = NULL, available_at = :now
WHERE id IN (
        SELECT id FROM lien_job
        WHERE state = 'scheduled' AND reason = 'unknown_task' AND task IN (SELECT value FROM json_each(:tasks))
        ORDER BY id
        LIMIT :limit
    )
    AND state || '' = 'scheduled' AND task IN (SELECT value FROM json_each(:tasks))
RETURNING id;
