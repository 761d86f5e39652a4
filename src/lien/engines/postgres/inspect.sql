-- name: show
SELECT id, queue, task, args::text, priority, state, reason, tenant, ordering_key, unique_key, available_at, created_at,
    expires_at, finished_at, attempt, failures, max_failures, lost, max_lost, interrupted, max_interrupted, timeout,
    fence, claimed_by, claimed_at, lease_expires_at,
    coalesce(lease_expires_at < (SELECT clock_timestamp()), false), cancel_requested, last_error, result::text, origin
FROM lien.lien_jobs
WHERE id = CAST(:id AS bigint);

-- name: list
-- Newest first, a page at a time: each half of the view is walked down by id and stops after the page.
SELECT * FROM (
    (
        SELECT id, queue, task, args::text, priority, state, reason, tenant, ordering_key, unique_key, available_at,
            created_at, expires_at, NULL::timestamptz AS finished_at, attempt, failures, max_failures, lost, max_lost,
            interrupted, max_interrupted, timeout, fence, claimed_by, claimed_at, lease_expires_at,
            coalesce(lease_expires_at < (SELECT clock_timestamp()), false), cancel_requested, last_error,
            NULL::text AS result, origin
        FROM lien.lien_job
        WHERE id <= CAST(:upto AS bigint)
            AND (CAST(:state AS text) IS NULL OR state || '' = :state)
            AND (CAST(:queue AS text) IS NULL OR queue = :queue)
            AND (CAST(:task AS text) IS NULL OR task = :task)
        ORDER BY id DESC
        LIMIT CAST(:limit AS integer)
    )
    UNION ALL
    (
        SELECT id, queue, task, args::text, priority, state, reason, tenant, ordering_key, unique_key, available_at,
            created_at, expires_at, finished_at, attempt, failures, max_failures, lost, max_lost,
            interrupted, max_interrupted, timeout, fence, NULL, NULL, NULL, false, false, last_error,
            result::text, origin
        FROM lien.lien_history
        WHERE id <= CAST(:upto AS bigint)
            AND (CAST(:state AS text) IS NULL OR state = :state)
            AND (CAST(:queue AS text) IS NULL OR queue = :queue)
            AND (CAST(:task AS text) IS NULL OR task = :task)
        ORDER BY id DESC
        LIMIT CAST(:limit AS integer)
    )
) AS page
ORDER BY id DESC
LIMIT CAST(:limit AS integer);

-- name: attempts
SELECT job_id, attempt, outcome, reason, error, traceback, worker, fence, started_at, ended_at
FROM lien.lien_attempt WHERE job_id = CAST(:id AS bigint) ORDER BY attempt, ended_at;

-- name: server
SELECT current_setting('server_version_num')::integer, current_setting('server_version'),
    pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean, current_setting('server_encoding');

-- name: namespace
SELECT namespace FROM lien.lien_identity;

-- name: schema_present
SELECT to_regclass('lien.lien_migration') IS NOT NULL;

-- name: schema_versions
SELECT version FROM lien.lien_migration ORDER BY version;

-- name: schema_lock
-- One migrator at a time; the others wait here and then find nothing left to do.
SELECT pg_advisory_xact_lock(hashtextextended('lien.lien_channel', 0)), set_config('lock_timeout', '2s', true);

-- name: schema_record
INSERT INTO lien.lien_migration (version, name) VALUES (CAST(:version AS integer), CAST(:name AS text));
