-- Every statement here is conditional on id + claim token + state. The state test is written `state || ''` because
-- a plain one makes the planner walk the index of leases instead of the primary key (2-3 times slower).

-- name: succeed
-- transition: succeed
WITH done AS (
    DELETE FROM lien.lien_job
    WHERE id = ANY(CAST(:ids AS bigint[])) AND claim_token = CAST(:token AS uuid) AND state || '' = 'claimed'
    RETURNING *
), closed AS (
    INSERT INTO lien.lien_attempt (job_id, attempt, outcome, worker, claim_token, fence, started_at)
    SELECT id, attempt, 'succeeded', claimed_by, claim_token, fence, claimed_at FROM done
), kept AS (
    INSERT INTO lien.lien_history (
        id, available_at, created_at, expires_at, fence, origin, timeout, backoff_base, backoff_cap, attempt, failures,
        max_failures, lost, max_lost, interrupted, max_interrupted, priority, state, queue, task, tenant,
        ordering_key, unique_key, args, headers, last_error
    )
    SELECT
        id, available_at, created_at, expires_at, fence, origin, timeout, backoff_base, backoff_cap, attempt, failures,
        max_failures, lost, max_lost, interrupted, max_interrupted, priority, 'succeeded', queue, task, tenant,
        ordering_key, unique_key, args, headers, last_error
    FROM done
)
SELECT id FROM done;

-- name: succeed_with_result
-- transition: succeed
WITH done AS (
    DELETE FROM lien.lien_job
    WHERE id = ANY(CAST(:ids AS bigint[])) AND claim_token = CAST(:token AS uuid) AND state || '' = 'claimed'
    RETURNING *
), closed AS (
    INSERT INTO lien.lien_attempt (job_id, attempt, outcome, worker, claim_token, fence, started_at)
    SELECT id, attempt, 'succeeded', claimed_by, claim_token, fence, claimed_at FROM done
), kept AS (
    INSERT INTO lien.lien_history (
        id, available_at, created_at, expires_at, fence, origin, timeout, backoff_base, backoff_cap, attempt, failures,
        max_failures, lost, max_lost, interrupted, max_interrupted, priority, state, queue, task, tenant,
        ordering_key, unique_key, args, headers, last_error, result
    )
    SELECT
        d.id, available_at, created_at, expires_at, fence, origin, timeout, backoff_base, backoff_cap, attempt,
        failures, max_failures, lost, max_lost, interrupted, max_interrupted, priority, 'succeeded', queue, task,
        tenant, ordering_key, unique_key, args, headers, last_error, CAST(r.result AS json)
    FROM done AS d
    JOIN unnest(CAST(:ids AS bigint[]), CAST(:results AS text[])) AS r (id, result) ON r.id = d.id
)
SELECT id FROM done;

-- name: fail
-- transition: fail
-- The rows are locked first, in id order, so that a cancel request that came meanwhile is seen.
WITH held AS MATERIALIZED (
    SELECT j.id, j.attempt, j.claimed_by, j.claim_token, j.fence, j.claimed_at, j.cancel_requested,
        v.final OR j.cancel_requested AS ends,
        CASE WHEN j.cancel_requested THEN 'cancelled' ELSE v.reason END AS reason,
        v.outcome, v.delay, v.error, v.traceback
    FROM unnest(
        CAST(:ids AS bigint[]), CAST(:finals AS boolean[]), CAST(:reasons AS text[]), CAST(:outcomes AS text[]),
        CAST(:delays AS double precision[]), CAST(:errors AS text[]), CAST(:tracebacks AS text[])
    ) AS v (id, final, reason, outcome, delay, error, traceback)
    JOIN lien.lien_job AS j ON j.id = v.id
    WHERE j.claim_token = CAST(:token AS uuid) AND j.state || '' = 'claimed'
    ORDER BY j.id
    FOR UPDATE OF j
), closed AS (
    INSERT INTO lien.lien_attempt
        (job_id, attempt, outcome, reason, error, traceback, worker, claim_token, fence, started_at)
    SELECT id, attempt, outcome, reason, error, traceback, claimed_by, claim_token, fence, claimed_at FROM held
), gone AS (
    DELETE FROM lien.lien_job
    WHERE id = ANY(ARRAY(SELECT id FROM held WHERE ends)) AND claim_token = CAST(:token AS uuid)
        AND state || '' = 'claimed'
    RETURNING *
), kept AS (
    INSERT INTO lien.lien_history (
        id, available_at, created_at, expires_at, fence, origin, timeout, backoff_base, backoff_cap, attempt, failures,
        max_failures, lost, max_lost, interrupted, max_interrupted, priority, state, reason, queue, task, tenant,
        ordering_key, unique_key, args, headers, last_error
    )
    SELECT
        g.id, available_at, created_at, expires_at, g.fence, origin, timeout, backoff_base, backoff_cap, g.attempt,
        LEAST(failures, 2147483646) + 1, max_failures, lost, max_lost, interrupted, max_interrupted, priority,
        'failed', h.reason, queue, task, tenant, ordering_key, unique_key, args, headers, left(h.error, 500)
    FROM gone AS g JOIN held AS h ON h.id = g.id
), again AS (
    UPDATE lien.lien_job AS j
    SET state = 'scheduled', failures = LEAST(j.failures, 2147483646) + 1, lost = 0,
        available_at = clock_timestamp() + make_interval(secs => h.delay), last_error = left(h.error, 500),
        claim_token = NULL, claimed_by = NULL, claimed_at = NULL, lease_expires_at = NULL
    FROM held AS h
    WHERE j.id = h.id AND NOT h.ends AND j.claim_token = CAST(:token AS uuid) AND j.state || '' = 'claimed'
    RETURNING j.id, j.available_at
)
SELECT h.id, CASE WHEN h.ends THEN 'failed' ELSE 'scheduled' END, CASE WHEN h.ends THEN h.reason END, again.available_at
FROM held AS h LEFT JOIN again ON again.id = h.id;

-- name: snooze
-- transition: snooze
WITH held AS MATERIALIZED (
    SELECT j.id, j.attempt, j.claimed_by, j.claim_token, j.fence, j.claimed_at, j.cancel_requested AS ends,
        v.delay, v.until
    FROM unnest(
        CAST(:ids AS bigint[]), CAST(:delays AS double precision[]), CAST(:untils AS timestamptz[])
    ) AS v (id, delay, until)
    JOIN lien.lien_job AS j ON j.id = v.id
    WHERE j.claim_token = CAST(:token AS uuid) AND j.state || '' = 'claimed'
    ORDER BY j.id
    FOR UPDATE OF j
), closed AS (
    INSERT INTO lien.lien_attempt (job_id, attempt, outcome, worker, claim_token, fence, started_at)
    SELECT id, attempt, 'snoozed', claimed_by, claim_token, fence, claimed_at FROM held
), gone AS (
    DELETE FROM lien.lien_job
    WHERE id = ANY(ARRAY(SELECT id FROM held WHERE ends)) AND claim_token = CAST(:token AS uuid)
        AND state || '' = 'claimed'
    RETURNING *
), kept AS (
    INSERT INTO lien.lien_history (
        id, available_at, created_at, expires_at, fence, origin, timeout, backoff_base, backoff_cap, attempt, failures,
        max_failures, lost, max_lost, interrupted, max_interrupted, priority, state, reason, queue, task, tenant,
        ordering_key, unique_key, args, headers, last_error
    )
    SELECT
        id, available_at, created_at, expires_at, fence, origin, timeout, backoff_base, backoff_cap, attempt, failures,
        max_failures, lost, max_lost, interrupted, max_interrupted, priority, 'failed', 'cancelled', queue, task,
        tenant, ordering_key, unique_key, args, headers, last_error
    FROM gone
), again AS (
    UPDATE lien.lien_job AS j
    SET state = 'scheduled', lost = 0,
        available_at = coalesce(h.until, clock_timestamp() + make_interval(secs => h.delay)),
        claim_token = NULL, claimed_by = NULL, claimed_at = NULL, lease_expires_at = NULL
    FROM held AS h
    WHERE j.id = h.id AND NOT h.ends AND j.claim_token = CAST(:token AS uuid) AND j.state || '' = 'claimed'
    RETURNING j.id, j.available_at
)
SELECT h.id, CASE WHEN h.ends THEN 'failed' ELSE 'scheduled' END, CASE WHEN h.ends THEN 'cancelled' END,
    again.available_at
FROM held AS h LEFT JOIN again ON again.id = h.id;

-- name: release
-- transition: release
WITH held AS MATERIALIZED (
    SELECT j.id, j.attempt, j.claimed_by, j.claim_token, j.fence, j.claimed_at, v.started, v.error,
        CASE
            WHEN j.cancel_requested THEN 'cancelled'
            WHEN v.started AND j.interrupted >= j.max_interrupted - 1 THEN 'interrupted'
        END AS reason
    FROM unnest(
        CAST(:ids AS bigint[]), CAST(:starteds AS boolean[]), CAST(:errors AS text[])
    ) AS v (id, started, error)
    JOIN lien.lien_job AS j ON j.id = v.id
    WHERE j.claim_token = CAST(:token AS uuid) AND j.state || '' = 'claimed'
    ORDER BY j.id
    FOR UPDATE OF j
), closed AS (
    INSERT INTO lien.lien_attempt
        (job_id, attempt, outcome, reason, error, worker, claim_token, fence, started_at)
    SELECT id, attempt, CASE WHEN started THEN 'interrupted' ELSE 'released' END, reason, error, claimed_by,
        claim_token, fence, claimed_at
    FROM held
), gone AS (
    DELETE FROM lien.lien_job
    WHERE id = ANY(ARRAY(SELECT id FROM held WHERE reason IS NOT NULL)) AND claim_token = CAST(:token AS uuid)
        AND state || '' = 'claimed'
    RETURNING *
), kept AS (
    INSERT INTO lien.lien_history (
        id, available_at, created_at, expires_at, fence, origin, timeout, backoff_base, backoff_cap, attempt, failures,
        max_failures, lost, max_lost, interrupted, max_interrupted, priority, state, reason, queue, task, tenant,
        ordering_key, unique_key, args, headers, last_error
    )
    SELECT
        g.id, available_at, created_at, expires_at, g.fence, origin, timeout, backoff_base, backoff_cap, g.attempt,
        failures, max_failures, lost, max_lost, LEAST(interrupted, 2147483646) + CASE WHEN h.started THEN 1 ELSE 0 END,
        max_interrupted, priority, 'failed', h.reason, queue, task, tenant, ordering_key, unique_key, args, headers,
        last_error
    FROM gone AS g JOIN held AS h ON h.id = g.id
), again AS (
    UPDATE lien.lien_job AS j
    SET state = 'runnable',
        interrupted = LEAST(j.interrupted, 2147483646) + CASE WHEN h.started THEN 1 ELSE 0 END,
        claim_token = NULL, claimed_by = NULL, claimed_at = NULL, lease_expires_at = NULL
    FROM held AS h
    WHERE j.id = h.id AND h.reason IS NULL AND j.claim_token = CAST(:token AS uuid) AND j.state || '' = 'claimed'
    RETURNING j.id, j.available_at
)
SELECT h.id, CASE WHEN h.reason IS NULL THEN 'runnable' ELSE 'failed' END, h.reason, again.available_at
FROM held AS h LEFT JOIN again ON again.id = h.id;

-- name: find_closed
-- Of these jobs, the attempts that ended under this token: those acknowledgements had been committed after all.
SELECT job_id, outcome FROM lien.lien_attempt
WHERE job_id = ANY(CAST(:ids AS bigint[])) AND claim_token = CAST(:token AS uuid);
