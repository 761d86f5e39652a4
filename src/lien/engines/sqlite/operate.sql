-- Cancelling is three statements of one transaction: a waiting job goes to the history and ends at once; a claimed one
-- is flagged, and its worker sees to it.

-- name: cancel_history
-- transition: cancel
INSERT INTO lien_history (
    id, available_at, created_at, expires_at, finished_at, fence, origin, timeout, backoff_base, backoff_cap, attempt,
    failures, max_failures, lost, max_lost, interrupted, max_interrupted, priority, state, reason, queue, task,
    tenant, ordering_key, unique_key, args, headers, last_error
)
SELECT
    id, available_at, created_at, expires_at, :now, fence, origin, timeout, backoff_base, backoff_cap, attempt,
    failures, max_failures, lost, max_lost, interrupted, max_interrupted, priority, 'failed', 'cancelled', queue, task,
    tenant, ordering_key, unique_key, args, headers, last_error
FROM lien_job
WHERE id = :id AND state || '' IN ('scheduled', 'runnable');

-- name: cancel
-- transition: cancel
DELETE FROM lien_job WHERE id = :id AND state || '' IN ('scheduled', 'runnable') RETURNING 'failed';

-- name: request_cancel
-- transition: request_cancel
UPDATE lien_job SET cancel_requested = 1 WHERE id = :id AND state || '' = 'claimed' RETURNING 'claimed';

-- name: copy_failed
-- transition: enqueue
-- A terminal job is never revived: a fresh job with its arguments and limits names it as its origin.
INSERT INTO lien_job (
    queue, task, args, headers, priority, available_at, created_at, state, unique_key, timeout, max_failures,
    max_lost, max_interrupted, backoff_base, backoff_cap, tenant, ordering_key, origin
)
SELECT queue, task, args, headers, priority, :now, :now, 'runnable', unique_key, timeout, max_failures,
    max_lost, max_interrupted, backoff_base, backoff_cap, tenant, ordering_key, id
FROM lien_history
WHERE id = :id AND state = 'failed'
ON CONFLICT DO NOTHING
RETURNING id;
