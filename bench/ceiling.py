"""The ceiling: a bare loop of two statements on the same tables, claim a batch and acknowledge it, nothing else.

Run as `python -m bench.ceiling URL BATCH`; prints jobs, seconds.
"""

from __future__ import annotations

import datetime
import json
import sqlite3
import sys
import time
import uuid

COLUMNS = (
    "id, available_at, created_at, expires_at, fence, origin, timeout, backoff_base, backoff_cap, attempt, failures, "
    "max_failures, lost, max_lost, interrupted, max_interrupted, priority, queue, task, tenant, ordering_key, "
    "unique_key, args, headers, last_error"
)

PG_CLAIM = """
WITH pick AS MATERIALIZED (
    SELECT id FROM lien_job
    WHERE state = 'runnable' AND tenant IS NULL AND ordering_key IS NULL AND queue = 'default' AND priority = 2
        AND available_at >= %(floor)s
    ORDER BY available_at, id LIMIT %(n)s FOR UPDATE SKIP LOCKED)
UPDATE lien_job SET state = 'claimed', attempt = attempt + 1, claim_token = %(token)s, fence = nextval('lien_fence'),
    claimed_at = clock_timestamp(), lease_expires_at = clock_timestamp() + interval '60 s', claimed_by = 'host:1'
WHERE id = ANY(ARRAY(SELECT id FROM pick))
RETURNING id, attempt, task, args::text, available_at"""

PG_ACK = f"""
WITH d AS (
    DELETE FROM lien_job WHERE id = ANY(%(ids)s::bigint[]) AND claim_token = %(token)s AND state || '' = 'claimed'
    RETURNING *),
a AS (INSERT INTO lien_attempt (job_id, attempt, outcome, worker, claim_token, fence, started_at)
    SELECT id, attempt, 'succeeded', claimed_by, claim_token, fence, claimed_at FROM d),
h AS (INSERT INTO lien_history ({COLUMNS}, state) SELECT {COLUMNS}, 'succeeded' FROM d)
SELECT id FROM d"""


def postgresql(url: str, batch: int) -> tuple[int, float]:
    """Drain everything; jobs and seconds."""
    import psycopg

    connection = psycopg.connect(url, autocommit=True, prepare_threshold=1, options="-c search_path=lien")
    connection.execute("SET plan_cache_mode = force_generic_plan")
    zero = floor = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
    done = 0
    previous: dict[str, object] | None = None
    started = time.perf_counter()
    while True:
        token = uuid.uuid4()
        claim = {"token": token, "n": batch, "floor": floor}
        with connection.pipeline():
            connection.execute("BEGIN")
            if previous:
                connection.execute(PG_ACK, previous)
            cursor = connection.execute(PG_CLAIM, claim)
            connection.execute("COMMIT")
        rows = cursor.fetchall()
        previous = {"ids": [row[0] for row in rows], "token": token} if rows else None
        if not rows:
            if floor == zero:
                break
            floor = zero
            continue
        floor = max(row[4] for row in rows)
        done += len(rows)
    return done, time.perf_counter() - started


LITE_PICK = """
SELECT id FROM lien_job
WHERE state = 'runnable' AND tenant IS NULL AND ordering_key IS NULL AND queue = 'default' AND priority = 2
ORDER BY available_at, id LIMIT ?"""

LITE_CLAIM = """
UPDATE lien_job SET state = 'claimed', attempt = attempt + 1, claim_token = :token, fence = :fence, claimed_at = :now,
    lease_expires_at = :now + 60000000, claimed_by = 'host:1'
WHERE id IN (SELECT value FROM json_each(:ids))
RETURNING id, attempt, task, args, available_at"""

LITE_ACK = (
    """
INSERT INTO lien_attempt (job_id, attempt, outcome, worker, claim_token, fence, started_at, ended_at)
SELECT id, attempt, 'succeeded', claimed_by, claim_token, fence, claimed_at, :now FROM lien_job
WHERE id IN (SELECT value FROM json_each(:ids)) AND claim_token = :token AND state = 'claimed'""",
    f"""
INSERT INTO lien_history ({COLUMNS}, state, finished_at) SELECT {COLUMNS}, 'succeeded', :now FROM lien_job
WHERE id IN (SELECT value FROM json_each(:ids)) AND claim_token = :token AND state = 'claimed'""",
    """
DELETE FROM lien_job WHERE id IN (SELECT value FROM json_each(:ids)) AND claim_token = :token AND state = 'claimed'
RETURNING id""",
)


def sqlite(url: str, batch: int) -> tuple[int, float]:
    """Drain everything; jobs and seconds."""
    connection = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    done = fence = 0
    previous: dict[str, object] | None = None
    started = time.perf_counter()
    while True:
        token = uuid.uuid4().hex
        now = time.time_ns() // 1000
        connection.execute("BEGIN IMMEDIATE")
        if previous:
            for statement in LITE_ACK:
                connection.execute(statement, {**previous, "now": now}).fetchall()
        ids = [row[0] for row in connection.execute(LITE_PICK, (batch,)).fetchall()]
        fence += 1
        params = {"ids": json.dumps(ids), "token": token, "fence": fence, "now": now}
        rows = connection.execute(LITE_CLAIM, params).fetchall() if ids else []
        connection.execute("COMMIT")
        previous = {"ids": json.dumps([row[0] for row in rows]), "token": token}
        if not rows:
            break
        done += len(rows)
    return done, time.perf_counter() - started


if __name__ == "__main__":
    url, batch = sys.argv[1], int(sys.argv[2])
    jobs, seconds = (sqlite if url.startswith("sqlite") else postgresql)(url, batch)
    print(json.dumps({"jobs": jobs, "seconds": seconds}))
