-- Every statement here is conditional on id + claim token + state. A transition is several statements of one
-- transaction: the record of the attempt, the row of the history, then the job itself; they see the same rows, as
-- nobody else can write meanwhile. Acks are JSON arrays, one for each job; CROSS JOIN walks them and finds each job
-- by its key. The state test is written `state || ''`, so that no partial index looks fit for it.

-- name: succeed_attempts
-- transition: succeed
INSERT INTO lien_attempt (job_id, attempt, outcome, worker, claim_token, fence, started_at, ended_at)
SELECT id, attempt, 'succeeded', claimed_by, claim_token, fence, claimed_at, :now
FROM lien_job
WHERE id IN (SELECT value FROM json_each(:ids)) AND claim_token = :token AND state || '' = 'claimed';

-- name: succeed_history
-- transition: succeed
INSERT INTO lien_history (
    id, available_at, created_at, expires_at, finished_at, fence, origin, timeout, backoff_base, backoff_cap, attempt,
    failures, max_failures, lost, max_lost, interrupted, max_interrupted, priority, state, queue, task,
    tenant, ordering_key, unique_key, args, headers, last_error
)
SELECT
    id, available_at, created_at, expires_at, :now, fence, origin, timeout, backoff_base, backoff_cap, attempt,
    failures, max_failures, lost, max_lost, interrupted, max_interrupted, priority, 'succeeded', queue, task,
    tenant, ordering_key, unique_key, args, headers, last_error
FROM lien_job
WHERE id IN (SELECT value FROM json_each(:ids)) AND claim_token = :token AND state || '' = 'claimed';

-- name: succeed_with_result
-- transition: succeed
-- The history of jobs with results, in place of succeed_history. An ack is [id, result].
INSERT INTO lien_history (
    id, available_at, created_at, expires_at, finished_at, fence, origin, timeout, backoff_base, backoff_cap, attempt,
    failures, max_failures, lost, max_lost, interrupted, max_interrupted, priority, state, queue, task,
    tenant, ordering_key, unique_key, args, headers, last_error, result
)
SELECT
    j.id, available_at, created_at, expires_at, :now, fence, origin, timeout, backoff_base, backoff_cap, attempt,
    failures, max_failures, lost, max_lost, interrupted, max_interrupted, priority, 'succeeded', queue, task,
    tenant, ordering_key, unique_key, args, headers, last_error, json_extract(v.value, '$[1]')
FROM json_each(:acks) AS v CROSS JOIN lien_job AS j ON j.id = json_extract(v.value, '$[0]')
WHERE claim_token = :token AND state || '' = 'claimed';

-- name: succeed
-- transition: succeed
DELETE FROM lien_job
WHERE id IN (SELECT value FROM json_each(:ids)) AND claim_token = :token AND state || '' = 'claimed'
RETURNING id;

-- name: fail_attempts
-- transition: fail
-- An ack is [id, final, reason, outcome, delay in microseconds, error, traceback].
INSERT INTO lien_attempt
    (job_id, attempt, outcome, reason, error, traceback, worker, claim_token, fence, started_at, ended_at)
SELECT j.id, attempt, json_extract(v.value, '$[3]'),
    CASE WHEN cancel_requested THEN 'cancelled' ELSE json_extract(v.value, '$[2]') END,
    json_extract(v.value, '$[5]'), json_extract(v.value, '$[6]'), claimed_by, claim_token, fence, claimed_at, :now
FROM json_each(:acks) AS v CROSS JOIN lien_job AS j ON j.id = json_extract(v.value, '$[0]')
WHERE claim_token = :token AND state || '' = 'claimed';

-- name: fail_history
-- transition: fail
INSERT INTO lien_history (
    id, available_at, created_at, expires_at, finished_at, fence, origin, timeout, backoff_base, backoff_cap, attempt,
    failures, max_failures, lost, max_lost, interrupted, max_interrupted, priority, state, reason, queue, task,
    tenant, ordering_key, unique_key, args, headers, last_error
)
SELECT
    j.id, available_at, created_at, expires_at, :now, fence, origin, timeout, backoff_base, backoff_cap,
    attempt, min(failures, 2147483646) + 1, max_failures, lost, max_lost, interrupted,
    max_interrupted, priority, 'failed',
    CASE WHEN cancel_requested THEN 'cancelled' ELSE json_extract(v.value, '$[2]') END, queue, task, tenant,
    ordering_key, unique_key, args, headers, substr(json_extract(v.value, '$[5]'), 1, 500)
FROM json_each(:acks) AS v CROSS JOIN lien_job AS j ON j.id = json_extract(v.value, '$[0]')
WHERE claim_token = :token AND state || '' = 'claimed' AND (cancel_requested OR json_extract(v.value, '$[1]'));

-- name: fail_end
-- transition: fail
DELETE FROM lien_job
WHERE id IN (SELECT json_extract(value, '$[0]') FROM json_each(:acks))
    AND claim_token = :token AND state || '' = 'claimed'
    AND (
        cancel_requested
        OR id IN (SELECT json_extract(value, '$[0]') FROM json_each(:acks) WHERE json_extract(value, '$[1]'))
    )
RETURNING id, CASE WHEN cancel_requested THEN 'cancelled' END;

-- name: fail
-- transition: fail
UPDATE lien_job
SET state = 'scheduled', failures = min(failures, 2147483646) + 1, lost = 0,
    available_at = :now + json_extract(v.value, '$[4]'), last_error = substr(json_extract(v.value, '$[5]'), 1, 500),
    claim_token = NULL, claimed_by = NULL, claimed_at = NULL, lease_expires_at = NULL
FROM json_each(:acks) AS v
WHERE lien_job.id = json_extract(v.value, '$[0]') AND claim_token = :token AND state || '' = 'claimed'
    AND NOT cancel_requested AND NOT json_extract(v.value, '$[1]')
RETURNING id, available_at;

-- name: snooze_attempts
-- transition: snooze
-- An ack is [id, until or null, delay], both in microseconds.
INSERT INTO lien_attempt (job_id, attempt, outcome, worker, claim_token, fence, started_at, ended_at)
SELECT id, attempt, 'snoozed', claimed_by, claim_token, fence, claimed_at, :now
FROM lien_job
WHERE id IN (SELECT json_extract(value, '$[0]') FROM json_each(:acks))
    AND claim_token = :token AND state || '' = 'claimed';

-- name: snooze_history
-- transition: snooze
INSERT INTO lien_history (
    id, available_at, created_at, expires_at, finished_at, fence, origin, timeout, backoff_base, backoff_cap, attempt,
    failures, max_failures, lost, max_lost, interrupted, max_interrupted, priority, state, reason, queue, task,
    tenant, ordering_key, unique_key, args, headers, last_error
)
SELECT
    id, available_at, created_at, expires_at, :now, fence, origin, timeout, backoff_base, backoff_cap,
    attempt, failures, max_failures, lost, max_lost, interrupted,
    max_interrupted, priority, 'failed', 'cancelled', queue, task, tenant, ordering_key,
    unique_key, args, headers, last_error
FROM lien_job
WHERE id IN (SELECT json_extract(value, '$[0]') FROM json_each(:acks))
    AND claim_token = :token AND state || '' = 'claimed' AND cancel_requested;

-- name: snooze_end
-- transition: snooze
DELETE FROM lien_job
WHERE id IN (SELECT json_extract(value, '$[0]') FROM json_each(:acks))
    AND claim_token = :token AND state || '' = 'claimed' AND cancel_requested
RETURNING id, 'cancelled';

-- name: snooze
-- transition: snooze
UPDATE lien_job
SET state = 'scheduled', lost = 0,
    available_at = coalesce(json_extract(v.value, '$[1]'), :now + json_extract(v.value, '$[2]')),
    claim_token = NULL, claimed_by = NULL, claimed_at = NULL, lease_expires_at = NULL
FROM json_each(:acks) AS v
WHERE lien_job.id = json_extract(v.value, '$[0]') AND claim_token = :token AND state || '' = 'claimed'
    AND NOT cancel_requested
RETURNING id, available_at;

-- name: release_attempts
-- transition: release
-- An ack is [id, started, error].
INSERT INTO lien_attempt
    (job_id, attempt, outcome, reason, error, worker, claim_token, fence, started_at, ended_at)
SELECT j.id, attempt, CASE WHEN json_extract(v.value, '$[1]') THEN 'interrupted' ELSE 'released' END,
    CASE
        WHEN cancel_requested THEN 'cancelled'
        WHEN json_extract(v.value, '$[1]') AND interrupted >= max_interrupted - 1 THEN 'interrupted'
    END,
    json_extract(v.value, '$[2]'), claimed_by, claim_token, fence, claimed_at, :now
FROM json_each(:acks) AS v CROSS JOIN lien_job AS j ON j.id = json_extract(v.value, '$[0]')
WHERE claim_token = :token AND state || '' = 'claimed';

-- name: release_history
-- transition: release
INSERT INTO lien_history (
    id, available_at, created_at, expires_at, finished_at, fence, origin, timeout, backoff_base, backoff_cap, attempt,
    failures, max_failures, lost, max_lost, interrupted, max_interrupted, priority, state, reason, queue, task,
    tenant, ordering_key, unique_key, args, headers, last_error
)
SELECT
    j.id, available_at, created_at, expires_at, :now, fence, origin, timeout, backoff_base, backoff_cap,
    attempt, j.failures, max_failures, lost, max_lost, min(interrupted, 2147483646) + json_extract(v.value, '$[1]'),
    max_interrupted, priority, 'failed', CASE WHEN cancel_requested THEN 'cancelled' ELSE 'interrupted' END, queue,
    task, tenant, ordering_key, unique_key, args, headers, j.last_error
FROM json_each(:acks) AS v CROSS JOIN lien_job AS j ON j.id = json_extract(v.value, '$[0]')
WHERE claim_token = :token AND state || '' = 'claimed'
    AND (cancel_requested OR (json_extract(v.value, '$[1]') AND interrupted >= max_interrupted - 1));

-- name: release_end
-- transition: release
DELETE FROM lien_job
WHERE id IN (SELECT json_extract(value, '$[0]') FROM json_each(:acks))
    AND claim_token = :token AND state || '' = 'claimed'
    AND (
        cancel_requested
        OR (
            interrupted >= max_interrupted - 1
            AND id IN (SELECT json_extract(value, '$[0]') FROM json_each(:acks) WHERE json_extract(value, '$[1]'))
        )
    )
RETURNING id, CASE WHEN cancel_requested THEN 'cancelled' ELSE 'interrupted' END;

-- name: release
-- transition: release
UPDATE lien_job
SET state = 'runnable', interrupted = min(interrupted, 2147483646) + json_extract(v.value, '$[1]'),
    claim_token = NULL, claimed_by = NULL, claimed_at = NULL, lease_expires_at = NULL
FROM json_each(:acks) AS v
WHERE lien_job.id = json_extract(v.value, '$[0]') AND claim_token = :token AND state || '' = 'claimed'
    AND NOT cancel_requested AND NOT (json_extract(v.value, '$[1]') AND interrupted >= max_interrupted - 1)
RETURNING id, available_at;

-- name: find_closed
-- Of these jobs, the attempts that ended under this token: those acknowledgements had been committed after all.
SELECT job_id, outcome FROM lien_attempt
WHERE job_id IN (SELECT value FROM json_each(:ids)) AND claim_token = :token;
