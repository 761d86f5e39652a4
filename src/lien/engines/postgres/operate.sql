-- name: cancel
-- transition: cancel, request_cancel
-- Waiting jobs end at once; a claimed one is flagged, and its worker sees to it. One statement decides which.
WITH target AS MATERIALIZED (
    SELECT id, state FROM lien.lien_job WHERE id = CAST(:id AS bigint) FOR UPDATE
), gone AS (
    DELETE FROM lien.lien_job
    WHERE id = ANY(ARRAY(SELECT id FROM target WHERE state IN ('scheduled', 'runnable')))
        AND state || '' IN ('scheduled', 'runnable')
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
), flagged AS (
    UPDATE lien.lien_job SET cancel_requested = true
    WHERE id = ANY(ARRAY(SELECT id FROM target WHERE state = 'claimed')) AND state || '' = 'claimed'
    RETURNING id
)
SELECT 'failed' FROM gone UNION ALL SELECT 'claimed' FROM flagged;

-- name: copy_failed
-- transition: enqueue
-- A terminal job is never revived: a fresh job with its arguments and limits names it as its origin.
INSERT INTO lien.lien_job (
    queue, task, args, headers, priority, available_at, state, unique_key, timeout, max_failures, max_lost,
    max_interrupted, backoff_base, backoff_cap, tenant, ordering_key, origin
)
SELECT queue, task, args, headers, priority, clock_timestamp(), 'runnable', unique_key, timeout, max_failures, max_lost,
    max_interrupted, backoff_base, backoff_cap, tenant, ordering_key, id
FROM lien.lien_history
WHERE id = CAST(:id AS bigint) AND state = 'failed'
ON CONFLICT DO NOTHING
RETURNING id;
