-- step: versions applied (new table)
CREATE TABLE IF NOT EXISTS lien_migration (
    version INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    applied_at INTEGER NOT NULL
) STRICT;

-- step: a name of this installation, for idempotency keys (new table)
CREATE TABLE lien_identity (
    one INTEGER PRIMARY KEY,
    namespace TEXT NOT NULL,
    CONSTRAINT lien_identity_one CHECK (one = 1)
) STRICT;
INSERT INTO lien_identity (one, namespace) VALUES (1, lower(hex(randomblob(16))));

-- step: fences: a counter in one row, raised inside the transaction that claims (new table)
CREATE TABLE lien_fence (
    one INTEGER PRIMARY KEY,
    value INTEGER NOT NULL,
    CONSTRAINT lien_fence_one CHECK (one = 1)
) STRICT;
INSERT INTO lien_fence (one, value) VALUES (1, 0);

-- step: live jobs only, small and hot; times are microseconds since 1970 in UTC (new table)
CREATE TABLE lien_job (
    -- AUTOINCREMENT: an id is never given twice, though its row has moved to the history.
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    available_at INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER,
    claimed_at INTEGER,
    lease_expires_at INTEGER,
    fence INTEGER NOT NULL DEFAULT 0,
    origin INTEGER,
    timeout REAL NOT NULL DEFAULT 3600,
    backoff_base REAL NOT NULL DEFAULT 5,
    backoff_cap REAL NOT NULL DEFAULT 3600,
    claim_token TEXT,
    attempt INTEGER NOT NULL DEFAULT 0,
    failures INTEGER NOT NULL DEFAULT 0,
    max_failures INTEGER NOT NULL DEFAULT 20,
    lost INTEGER NOT NULL DEFAULT 0,
    max_lost INTEGER NOT NULL DEFAULT 20,
    interrupted INTEGER NOT NULL DEFAULT 0,
    max_interrupted INTEGER NOT NULL DEFAULT 20,
    priority INTEGER NOT NULL DEFAULT 2,
    cancel_requested INTEGER NOT NULL DEFAULT 0,
    state TEXT NOT NULL,
    reason TEXT,
    queue TEXT NOT NULL DEFAULT 'default',
    task TEXT NOT NULL,
    tenant TEXT,
    ordering_key TEXT,
    unique_key TEXT,
    claimed_by TEXT,
    args TEXT NOT NULL DEFAULT '{}',
    headers TEXT,
    last_error TEXT,
    CONSTRAINT lien_job_state CHECK (state IN ('scheduled', 'runnable', 'claimed')),
    CONSTRAINT lien_job_claim CHECK (
        CASE WHEN state = 'claimed'
            THEN claim_token IS NOT NULL AND claimed_by IS NOT NULL AND claimed_at IS NOT NULL
                AND lease_expires_at IS NOT NULL AND attempt > 0 AND fence > 0
            ELSE claim_token IS NULL AND claimed_by IS NULL AND claimed_at IS NULL AND lease_expires_at IS NULL
                AND NOT cancel_requested
        END
    ),
    CONSTRAINT lien_job_token CHECK (length(claim_token) = 32 AND claim_token NOT GLOB '*[^0-9a-f]*'),
    CONSTRAINT lien_job_reason CHECK (reason IS NULL OR (state = 'scheduled' AND reason = 'unknown_task')),
    CONSTRAINT lien_job_priority CHECK (priority BETWEEN 0 AND 3),
    CONSTRAINT lien_job_flag CHECK (cancel_requested IN (0, 1)),
    CONSTRAINT lien_job_counters CHECK (
        attempt BETWEEN 0 AND 2147483647 AND failures BETWEEN 0 AND 2147483647
        AND lost BETWEEN 0 AND 2147483647 AND interrupted BETWEEN 0 AND 2147483647
        AND max_failures BETWEEN 1 AND 2147483647 AND max_lost BETWEEN 1 AND 2147483647
        AND max_interrupted BETWEEN 1 AND 2147483647
    ),
    -- From 1900 to 9900, and to 9999 for the expiry: the years that every client language can read.
    CONSTRAINT lien_job_times CHECK (
        available_at >= -2208988800000000 AND available_at < 250246627200000000
        AND expires_at >= -2208988800000000 AND expires_at < 253399622400000000
    ),
    -- Up to 100 years, so that a sum with a time never overflows.
    CONSTRAINT lien_job_seconds CHECK (
        timeout > 0 AND timeout <= 3162240000 AND backoff_base BETWEEN 0 AND 3162240000
        AND backoff_cap BETWEEN 0 AND 3162240000
    ),
    CONSTRAINT lien_job_names CHECK (
        length(queue) BETWEEN 1 AND 200 AND length(task) BETWEEN 1 AND 200
        AND length(tenant) BETWEEN 1 AND 200 AND length(ordering_key) BETWEEN 1 AND 200
        AND length(unique_key) BETWEEN 1 AND 200
    ),
    CONSTRAINT lien_job_args CHECK (CASE WHEN json_valid(args) THEN json_type(args) = 'object' ELSE 0 END),
    CONSTRAINT lien_job_headers CHECK (headers IS NULL OR json_valid(headers))
) STRICT;
-- The row exists from the start, so that ids can be reserved before the first job.
INSERT INTO sqlite_sequence (name, seq) VALUES ('lien_job', 0);

-- step: one index for each way of looking; their predicates exclude one another (new indexes on a new table)
CREATE INDEX lien_job_runnable ON lien_job (queue, priority, available_at, id)
    WHERE state = 'runnable' AND tenant IS NULL AND ordering_key IS NULL;
CREATE INDEX lien_job_fair ON lien_job (queue, priority, tenant, available_at, id)
    WHERE state = 'runnable' AND tenant IS NOT NULL AND ordering_key IS NULL;
CREATE INDEX lien_job_ordered ON lien_job (queue, coalesce(tenant, ''), ordering_key, id)
    WHERE state = 'runnable' AND ordering_key IS NOT NULL;
CREATE INDEX lien_job_backoff ON lien_job (queue, coalesce(tenant, ''), ordering_key, id)
    WHERE state = 'scheduled' AND (attempt > 0 OR reason = 'unknown_task') AND ordering_key IS NOT NULL;
CREATE UNIQUE INDEX lien_job_one_claim ON lien_job (queue, coalesce(tenant, ''), ordering_key)
    WHERE state = 'claimed' AND ordering_key IS NOT NULL;
CREATE INDEX lien_job_lease ON lien_job (lease_expires_at) WHERE state = 'claimed';
CREATE INDEX lien_job_due ON lien_job (available_at) WHERE state = 'scheduled';
CREATE INDEX lien_job_parked ON lien_job (task) WHERE state = 'scheduled' AND reason = 'unknown_task';
CREATE INDEX lien_job_expiry ON lien_job (expires_at)
    WHERE expires_at IS NOT NULL AND state IN ('scheduled', 'runnable');
CREATE UNIQUE INDEX lien_job_unique ON lien_job (queue, coalesce(tenant, ''), unique_key)
    WHERE unique_key IS NOT NULL;

-- step: one row for each attempt, written once by the transaction that ends it (new table)
CREATE TABLE lien_attempt (
    job_id INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    claim_token TEXT NOT NULL,
    fence INTEGER NOT NULL,
    started_at INTEGER NOT NULL,
    ended_at INTEGER NOT NULL,
    outcome TEXT NOT NULL,
    reason TEXT,
    worker TEXT NOT NULL,
    error TEXT,
    traceback TEXT,
    -- The token tells apart the attempts of a job whose counter is saturated.
    PRIMARY KEY (job_id, attempt, claim_token),
    CONSTRAINT lien_attempt_outcome CHECK (outcome IN
        ('succeeded', 'failed', 'timeout', 'snoozed', 'released', 'interrupted', 'lost', 'cancelled'))
) WITHOUT ROWID, STRICT;

-- step: terminal jobs, appended and never changed (new table)
CREATE TABLE lien_history (
    id INTEGER PRIMARY KEY,
    available_at INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER,
    finished_at INTEGER NOT NULL,
    fence INTEGER NOT NULL,
    origin INTEGER,
    timeout REAL NOT NULL,
    backoff_base REAL NOT NULL,
    backoff_cap REAL NOT NULL,
    attempt INTEGER NOT NULL,
    failures INTEGER NOT NULL,
    max_failures INTEGER NOT NULL,
    lost INTEGER NOT NULL,
    max_lost INTEGER NOT NULL,
    interrupted INTEGER NOT NULL,
    max_interrupted INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    state TEXT NOT NULL,
    reason TEXT,
    queue TEXT NOT NULL,
    task TEXT NOT NULL,
    tenant TEXT,
    ordering_key TEXT,
    unique_key TEXT,
    args TEXT NOT NULL,
    headers TEXT,
    last_error TEXT,
    result TEXT,
    CONSTRAINT lien_history_state CHECK (state IN ('succeeded', 'failed')),
    CONSTRAINT lien_history_reason CHECK (
        CASE state WHEN 'succeeded' THEN reason IS NULL
            ELSE reason IS NOT NULL AND result IS NULL
                AND reason IN ('exhausted', 'permanent', 'lost', 'interrupted', 'cancelled', 'expired')
        END
    ),
    CONSTRAINT lien_history_result CHECK (result IS NULL OR json_valid(result))
) STRICT;

-- step: live jobs and history together, for people (new view)
CREATE VIEW lien_jobs AS
SELECT id, queue, task, state, reason, priority, tenant, ordering_key, unique_key, args, headers, available_at,
    created_at, expires_at, NULL AS finished_at, attempt, failures, max_failures, lost, max_lost,
    interrupted, max_interrupted, timeout, backoff_base, backoff_cap, fence, claimed_by, claimed_at, lease_expires_at,
    cancel_requested, last_error, NULL AS result, origin
FROM lien_job
UNION ALL
SELECT id, queue, task, state, reason, priority, tenant, ordering_key, unique_key, args, headers, available_at,
    created_at, expires_at, finished_at, attempt, failures, max_failures, lost, max_lost,
    interrupted, max_interrupted, timeout, backoff_base, backoff_cap, fence, NULL, NULL, NULL,
    0, last_error, result, origin
FROM lien_history;
