-- name: renew
-- transition: renew
-- SKIP LOCKED: a row that some transaction holds must not keep the other claims from being renewed.
WITH held AS MATERIALIZED (
    SELECT j.id
    FROM unnest(CAST(:ids AS bigint[]), CAST(:tokens AS uuid[])) AS h (id, token)
    JOIN lien.lien_job AS j ON j.id = h.id AND j.claim_token = h.token
    WHERE j.state || '' = 'claimed'
    ORDER BY j.id
    FOR UPDATE OF j SKIP LOCKED
)
UPDATE lien.lien_job
SET lease_expires_at = clock_timestamp() + make_interval(secs => CAST(:lease AS double precision))
WHERE id = ANY(ARRAY(SELECT id FROM held)) AND claim_token = ANY(CAST(:tokens AS uuid[])) AND state || '' = 'claimed'
RETURNING id, cancel_requested;

-- name: still_held
-- Those that a renewal did not return: still under the token means locked just now, otherwise lost.
SELECT j.id
FROM unnest(CAST(:ids AS bigint[]), CAST(:tokens AS uuid[])) AS h (id, token)
JOIN lien.lien_job AS j ON j.id = h.id AND j.claim_token = h.token;

-- name: cancel_requests
SELECT id FROM lien.lien_job WHERE id = ANY(CAST(:ids AS bigint[])) AND cancel_requested;

-- name: reap
-- transition: reap
WITH held AS MATERIALIZED (
    SELECT id, attempt, claimed_by, claim_token, fence, claimed_at,
        CASE WHEN cancel_requested THEN 'cancelled' WHEN lost >= max_lost - 1 THEN 'lost' END AS reason
    FROM lien.lien_job
    WHERE state = 'claimed' AND lease_expires_at < (SELECT clock_timestamp())
    ORDER BY lease_expires_at
    LIMIT CAST(:limit AS integer)
    FOR UPDATE SKIP LOCKED
), closed AS (
    INSERT INTO lien.lien_attempt
        (job_id, attempt, outcome, reason, error, worker, claim_token, fence, started_at)
    SELECT id, attempt, 'lost', reason, 'worker lost: it fell silent and the lease ran out', claimed_by, claim_token,
        fence, claimed_at
    FROM held
), gone AS (
    DELETE FROM lien.lien_job
    WHERE id = ANY(ARRAY(SELECT id FROM held WHERE reason IS NOT NULL)) AND state || '' = 'claimed'
        AND lease_expires_at < (SELECT clock_timestamp())
    RETURNING *
), kept AS (
    INSERT INTO lien.lien_history (
        id, available_at, created_at, expires_at, fence, origin, timeout, backoff_base, backoff_cap, attempt, failures,
        max_failures, lost, max_lost, interrupted, max_interrupted, priority, state, reason, queue, task, tenant,
        ordering_key, unique_key, args, headers, last_error
    )
    SELECT
        g.id, available_at, created_at, expires_at, g.fence, origin, timeout, backoff_base, backoff_cap, g.attempt,
        failures, max_failures, LEAST(lost, 2147483646) + 1, max_lost, interrupted, max_interrupted, priority,
        'failed', h.reason, queue, task, tenant, ordering_key, unique_key, args, headers,
        'worker lost: it fell silent and the lease ran out'
    FROM gone AS g JOIN held AS h ON h.id = g.id
), again AS (
    UPDATE lien.lien_job
    SET state = 'scheduled', lost = LEAST(lost, 2147483646) + 1,
        available_at = clock_timestamp() + make_interval(
            secs => LEAST(backoff_cap, backoff_base * 2.0::double precision ^ LEAST(lost, 60)) * (0.5 + 0.5 * random())
        ),
        last_error = 'worker lost: it fell silent and the lease ran out',
        claim_token = NULL, claimed_by = NULL, claimed_at = NULL, lease_expires_at = NULL
    WHERE id = ANY(ARRAY(SELECT id FROM held WHERE reason IS NULL)) AND state || '' = 'claimed'
        AND lease_expires_at < (SELECT clock_timestamp())
    RETURNING id
)
SELECT id, attempt, claimed_by, CASE WHEN reason IS NULL THEN 'scheduled' ELSE 'failed' END, reason FROM held;

-- name: expire
-- transition: expire
WITH gone AS (
    DELETE FROM lien.lien_job
    WHERE id = ANY(ARRAY(
        SELECT id FROM lien.lien_job
        WHERE expires_at IS NOT NULL AND state IN ('scheduled', 'runnable')
            AND expires_at <= (SELECT clock_timestamp())
        ORDER BY expires_at
        LIMIT CAST(:limit AS integer)
        FOR UPDATE SKIP LOCKED
    )) AND state || '' IN ('scheduled', 'runnable')
    RETURNING *
), kept AS (
    INSERT INTO lien.lien_history (
        id, available_at, created_at, expires_at, fence, origin, timeout, backoff_base, backoff_cap, attempt, failures,
        max_failures, lost, max_lost, interrupted, max_interrupted, priority, state, reason, queue, task, tenant,
        ordering_key, unique_key, args, headers, last_error
    )
    SELECT
        id, available_at, created_at, expires_at, fence, origin, timeout, backoff_base, backoff_cap, attempt, failures,
        max_failures, lost, max_lost, interrupted, max_interrupted, priority, 'failed', 'expired', queue, task,
        tenant, ordering_key, unique_key, args, headers, last_error
    FROM gone
)
SELECT id FROM gone;

-- name: orphans
-- Claims of this worker that it never heard of: their statement committed while the connection broke.
SELECT id, attempt, claim_token FROM lien.lien_job
WHERE state = 'claimed' AND claim_token = ANY(CAST(:tokens AS uuid[]));
