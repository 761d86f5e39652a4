-- name: renew
-- transition: renew
-- Those that it does not return are lost: with one writer at a time there is no row that is merely locked.
UPDATE lien_job SET lease_expires_at = :now + :lease_us
FROM json_each(:held) AS h
WHERE lien_job.id = json_extract(h.value, '$[0]') AND claim_token = json_extract(h.value, '$[1]')
    AND state || '' = 'claimed'
RETURNING id, cancel_requested;

-- name: cancel_requests
SELECT id FROM lien_job WHERE id IN (SELECT value FROM json_each(:ids)) AND cancel_requested;

-- name: reap_pick
SELECT id, attempt, claimed_by,
    CASE WHEN cancel_requested OR lost >= max_lost - 1 THEN 'failed' ELSE 'scheduled' END,
    CASE WHEN cancel_requested THEN 'cancelled' WHEN lost >= max_lost - 1 THEN 'lost' END
FROM lien_job
WHERE state = 'claimed' AND lease_expires_at < :now
ORDER BY lease_expires_at
LIMIT :limit;

-- name: reap_attempts
-- transition: reap
INSERT INTO lien_attempt
    (job_id, attempt, outcome, reason, error, worker, claim_token, fence, started_at, ended_at)
SELECT id, attempt, 'lost', CASE WHEN cancel_requested THEN 'cancelled' WHEN lost >= max_lost - 1 THEN 'lost' END,
    'worker lost: it fell silent and the lease ran out', claimed_by, claim_token, fence, claimed_at, :now
FROM lien_job
WHERE id IN (SELECT value FROM json_each(:ids)) AND state || '' = 'claimed' AND lease_expires_at < :now;

-- name: reap_history
-- transition: reap
INSERT INTO lien_history (
    id, available_at, created_at, expires_at, finished_at, fence, origin, timeout, backoff_base, backoff_cap, attempt,
    failures, max_failures, lost, max_lost, interrupted, max_interrupted, priority, state, reason, queue, task,
    tenant, ordering_key, unique_key, args, headers, last_error
)
SELECT
    id, available_at, created_at, expires_at, :now, fence, origin, timeout, backoff_base, backoff_cap,
    attempt, failures, max_failures, min(lost, 2147483646) + 1, max_lost, interrupted,
    max_interrupted, priority, 'failed', CASE WHEN cancel_requested THEN 'cancelled' ELSE 'lost' END, queue, task,
    tenant, ordering_key, unique_key, args, headers, 'worker lost: it fell silent and the lease ran out'
FROM lien_job
WHERE id IN (SELECT value FROM json_each(:ids)) AND state || '' = 'claimed' AND lease_expires_at < :now
    AND (cancel_requested OR lost >= max_lost - 1);

-- name: reap_end
-- transition: reap
DELETE FROM lien_job
WHERE id IN (SELECT value FROM json_each(:ids)) AND state || '' = 'claimed' AND lease_expires_at < :now
    AND (cancel_requested OR lost >= max_lost - 1);

-- name: reap
-- transition: reap
-- The backoff of lien.policy, with a jitter of 0.5 to 1.
UPDATE lien_job
SET state = 'scheduled', lost = min(lost, 2147483646) + 1,
    available_at = :now + CAST(
        min(backoff_cap, backoff_base * (1 << min(lost, 60))) * (0.5 + (random() & 1048575) / 2097150.0) * 1000000
        AS INTEGER
    ),
    last_error = 'worker lost: it fell silent and the lease ran out',
    claim_token = NULL, claimed_by = NULL, claimed_at = NULL, lease_expires_at = NULL
WHERE id IN (SELECT value FROM json_each(:ids)) AND state || '' = 'claimed' AND lease_expires_at < :now
    AND NOT cancel_requested AND lost < max_lost - 1;

-- name: expire_pick
SELECT id FROM lien_job
WHERE expires_at IS NOT NULL AND state IN ('scheduled', 'runnable') AND expires_at <= :now
ORDER BY expires_at
LIMIT :limit;

-- name: expire_history
-- transition: expire
INSERT INTO lien_history (
    id, available_at, created_at, expires_at, finished_at, fence, origin, timeout, backoff_base, backoff_cap, attempt,
    failures, max_failures, lost, max_lost, interrupted, max_interrupted, priority, state, reason, queue, task,
    tenant, ordering_key, unique_key, args, headers, last_error
)
SELECT
    id, available_at, created_at, expires_at, :now, fence, origin, timeout, backoff_base, backoff_cap,
    attempt, failures, max_failures, lost, max_lost, interrupted,
    max_interrupted, priority, 'failed', 'expired', queue, task, tenant, ordering_key,
    unique_key, args, headers, last_error
FROM lien_job
WHERE id IN (SELECT value FROM json_each(:ids)) AND state || '' IN ('scheduled', 'runnable') AND expires_at <= :now;

-- name: expire
-- transition: expire
DELETE FROM lien_job
WHERE id IN (SELECT value FROM json_each(:ids)) AND state || '' IN ('scheduled', 'runnable') AND expires_at <= :now
RETURNING id;

-- name: orphans
-- Claims of this worker that it never heard of: their transaction committed while the connection broke.
SELECT id, attempt, claim_token FROM lien_job
WHERE state = 'claimed' AND claim_token IN (SELECT value FROM json_each(:tokens));

-- name: clock
SELECT :now;
