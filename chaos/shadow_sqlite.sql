-- Every change of every row with who made it; the database is its own witness. SQLite's clock gives milliseconds, and
-- a connection has no name, so each one brings a function chaos_who().
CREATE TABLE chaos_shadow (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    at INTEGER NOT NULL,
    who TEXT NOT NULL,
    source TEXT NOT NULL,
    op TEXT NOT NULL,
    job_id INTEGER NOT NULL,
    old TEXT,
    new TEXT
);
CREATE TABLE chaos_effect (job_id INTEGER, attempt INTEGER, fence INTEGER, mark TEXT, who TEXT);
CREATE TABLE chaos_order (mark TEXT PRIMARY KEY);

CREATE TRIGGER chaos_job_insert AFTER INSERT ON lien_job BEGIN
    INSERT INTO chaos_shadow (at, who, source, op, job_id, old, new) VALUES (
        CAST((julianday('now') - 2440587.5) * 86400000.0 AS INTEGER) * 1000,
        chaos_who(), 'job', 'I', NEW.id,
        NULL,
        json_array(
            NEW.state, NEW.claim_token, NEW.fence, NEW.attempt, NEW.failures, NEW.max_failures, NEW.lost,
            NEW.max_lost, NEW.interrupted, NEW.max_interrupted, NEW.cancel_requested, NEW.reason,
            NEW.available_at, NEW.expires_at, NEW.claimed_at, NEW.lease_expires_at, NEW.claimed_by,
            NEW.queue, NEW.unique_key, NEW.origin, json_extract(NEW.args, '$.mark')
        )
    );
END;

CREATE TRIGGER chaos_job_update AFTER UPDATE ON lien_job BEGIN
    INSERT INTO chaos_shadow (at, who, source, op, job_id, old, new) VALUES (
        CAST((julianday('now') - 2440587.5) * 86400000.0 AS INTEGER) * 1000,
        chaos_who(), 'job', 'U', NEW.id,
        json_array(
            OLD.state, OLD.claim_token, OLD.fence, OLD.attempt, OLD.failures, OLD.max_failures, OLD.lost,
            OLD.max_lost, OLD.interrupted, OLD.max_interrupted, OLD.cancel_requested, OLD.reason,
            OLD.available_at, OLD.expires_at, OLD.claimed_at, OLD.lease_expires_at, OLD.claimed_by,
            OLD.queue, OLD.unique_key, OLD.origin, json_extract(OLD.args, '$.mark')
        ),
        json_array(
            NEW.state, NEW.claim_token, NEW.fence, NEW.attempt, NEW.failures, NEW.max_failures, NEW.lost,
            NEW.max_lost, NEW.interrupted, NEW.max_interrupted, NEW.cancel_requested, NEW.reason,
            NEW.available_at, NEW.expires_at, NEW.claimed_at, NEW.lease_expires_at, NEW.claimed_by,
            NEW.queue, NEW.unique_key, NEW.origin, json_extract(NEW.args, '$.mark')
        )
    );
END;

CREATE TRIGGER chaos_job_delete AFTER DELETE ON lien_job BEGIN
    INSERT INTO chaos_shadow (at, who, source, op, job_id, old, new) VALUES (
        CAST((julianday('now') - 2440587.5) * 86400000.0 AS INTEGER) * 1000,
        chaos_who(), 'job', 'D', OLD.id,
        json_array(
            OLD.state, OLD.claim_token, OLD.fence, OLD.attempt, OLD.failures, OLD.max_failures, OLD.lost,
            OLD.max_lost, OLD.interrupted, OLD.max_interrupted, OLD.cancel_requested, OLD.reason,
            OLD.available_at, OLD.expires_at, OLD.claimed_at, OLD.lease_expires_at, OLD.claimed_by,
            OLD.queue, OLD.unique_key, OLD.origin, json_extract(OLD.args, '$.mark')
        ),
        NULL
    );
END;

CREATE TRIGGER chaos_attempt_insert AFTER INSERT ON lien_attempt BEGIN
    INSERT INTO chaos_shadow (at, who, source, op, job_id, old, new) VALUES (
        CAST((julianday('now') - 2440587.5) * 86400000.0 AS INTEGER) * 1000,
        chaos_who(), 'attempt', 'I', NEW.job_id,
        NULL,
        json_array(
            NEW.attempt, NEW.outcome, NEW.reason, NEW.claim_token, NEW.fence, NEW.worker, NEW.started_at,
            NEW.ended_at
        )
    );
END;

CREATE TRIGGER chaos_attempt_update AFTER UPDATE ON lien_attempt BEGIN
    INSERT INTO chaos_shadow (at, who, source, op, job_id, old, new) VALUES (
        CAST((julianday('now') - 2440587.5) * 86400000.0 AS INTEGER) * 1000,
        chaos_who(), 'attempt', 'U', NEW.job_id,
        NULL,
        json_array(
            NEW.attempt, NEW.outcome, NEW.reason, NEW.claim_token, NEW.fence, NEW.worker, NEW.started_at,
            NEW.ended_at
        )
    );
END;

CREATE TRIGGER chaos_attempt_delete AFTER DELETE ON lien_attempt BEGIN
    INSERT INTO chaos_shadow (at, who, source, op, job_id, old, new) VALUES (
        CAST((julianday('now') - 2440587.5) * 86400000.0 AS INTEGER) * 1000,
        chaos_who(), 'attempt', 'D', OLD.job_id,
        NULL,
        json_array(
            OLD.attempt, OLD.outcome, OLD.reason, OLD.claim_token, OLD.fence, OLD.worker, OLD.started_at,
            OLD.ended_at
        )
    );
END;

CREATE TRIGGER chaos_history_insert AFTER INSERT ON lien_history BEGIN
    INSERT INTO chaos_shadow (at, who, source, op, job_id, old, new) VALUES (
        CAST((julianday('now') - 2440587.5) * 86400000.0 AS INTEGER) * 1000,
        chaos_who(), 'history', 'I', NEW.id,
        NULL,
        json_array(
            NEW.state, NEW.reason, NEW.fence, NEW.attempt, NEW.failures, NEW.lost, NEW.interrupted,
            NEW.finished_at, json_extract(NEW.result, '$.mark')
        )
    );
END;

CREATE TRIGGER chaos_history_update AFTER UPDATE ON lien_history BEGIN
    INSERT INTO chaos_shadow (at, who, source, op, job_id, old, new) VALUES (
        CAST((julianday('now') - 2440587.5) * 86400000.0 AS INTEGER) * 1000,
        chaos_who(), 'history', 'U', NEW.id,
        NULL,
        json_array(
            NEW.state, NEW.reason, NEW.fence, NEW.attempt, NEW.failures, NEW.lost, NEW.interrupted,
            NEW.finished_at, json_extract(NEW.result, '$.mark')
        )
    );
END;

CREATE TRIGGER chaos_history_delete AFTER DELETE ON lien_history BEGIN
    INSERT INTO chaos_shadow (at, who, source, op, job_id, old, new) VALUES (
        CAST((julianday('now') - 2440587.5) * 86400000.0 AS INTEGER) * 1000,
        chaos_who(), 'history', 'D', OLD.id,
        NULL,
        json_array(
            OLD.state, OLD.reason, OLD.fence, OLD.attempt, OLD.failures, OLD.lost, OLD.interrupted,
            OLD.finished_at, json_extract(OLD.result, '$.mark')
        )
    );
END;
