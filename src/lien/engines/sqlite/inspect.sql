-- name: show
SELECT id, queue, task, args, priority, state, reason, tenant, ordering_key, unique_key, available_at, created_at,
    expires_at, finished_at, attempt, failures, max_failures, lost, max_lost, interrupted, max_interrupted, timeout,
    fence, claimed_by, claimed_at, lease_expires_at, coalesce(lease_expires_at < :now, 0), cancel_requested,
    last_error, result, origin
FROM lien_jobs
WHERE id = :id;

-- name: list
-- Newest first, a page at a time: each half of the view is walked down by id and stops after the page.
SELECT * FROM (
    SELECT id, queue, task, args, priority, state, reason, tenant, ordering_key, unique_key, available_at, created_at,
        expires_at, NULL AS finished_at, attempt, failures, max_failures, lost, max_lost, interrupted,
        max_interrupted, timeout, fence, claimed_by, claimed_at, lease_expires_at,
        coalesce(lease_expires_at < :now, 0) AS lease_expired, cancel_requested, last_error, NULL AS result, origin
    FROM lien_job
    WHERE id <= :upto
        AND (:state IS NULL OR state || '' = :state)
        AND (:queue IS NULL OR queue = :queue)
        AND (:task IS NULL OR task = :task)
    ORDER BY id DESC
    LIMIT :limit
)
UNION ALL
SELECT * FROM (
    SELECT id, queue, task, args, priority, state, reason, tenant, ordering_key, unique_key, available_at, created_at,
        expires_at, finished_at, attempt, failures, max_failures, lost, max_lost, interrupted,
        max_interrupted, timeout, fence, NULL AS claimed_by, NULL AS claimed_at, NULL AS lease_expires_at,
        0 AS lease_expired, 0 AS cancel_requested, last_error, result, origin
    FROM lien_history
    WHERE id <= :upto
        AND (:state IS NULL OR state = :state)
        AND (:queue IS NULL OR queue = :queue)
        AND (:task IS NULL OR task = :task)
    ORDER BY id DESC
    LIMIT :limit
)
ORDER BY id DESC
LIMIT :limit;

-- name: attempts
SELECT job_id, attempt, outcome, reason, error, traceback, worker, fence, started_at, ended_at
FROM lien_attempt WHERE job_id = :id ORDER BY attempt, ended_at;

-- name: server
SELECT sqlite_version(), (SELECT query_only FROM pragma_query_only);

-- name: namespace
SELECT namespace FROM lien_identity;

-- name: schema_present
SELECT EXISTS (SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'lien_migration');

-- name: schema_versions
SELECT version FROM lien_migration ORDER BY version;

-- name: schema_record
INSERT INTO lien_migration (version, name, applied_at) VALUES (:version, :name, :now);
