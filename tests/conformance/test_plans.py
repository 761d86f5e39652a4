"""PostgreSQL's plans: which index each hot statement takes, and that it reads no more rows than it needs.

The statements run under generic plans, as the pump runs them, in a transaction that is rolled back:
with statistics of an almost empty table, and with true ones.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql

from tests.conformance.kit import Database

pytestmark = pytest.mark.only("postgresql")

N = 100_000
LOAD = """
INSERT INTO lien.lien_job (task, state, available_at, backoff_base)
SELECT 'work', 'runnable', clock_timestamp() - make_interval(secs => n), 5 FROM generate_series(1, {few}) n;
INSERT INTO lien.lien_job (task, state, available_at)
SELECT 'work', 'scheduled', clock_timestamp() + make_interval(secs => n - 50) FROM generate_series(1, {n}) n;
INSERT INTO lien.lien_job (task, state, available_at, claim_token, claimed_by, claimed_at, lease_expires_at, attempt,
    fence)
SELECT 'work', 'claimed', clock_timestamp(), ('00000000-0000-0000-0000-' || lpad(n::text, 12, '0'))::uuid, 'w',
    clock_timestamp(), clock_timestamp() + make_interval(secs => n - 50 + 3600 * (n > 50)::integer), 1, 1
FROM generate_series(1, {n}) n;
"""


@pytest.fixture(scope="module", params=["one_row", "true"])
def loaded(request: pytest.FixtureRequest) -> Iterator[Database]:
    """20,000 runnable, 100,000 scheduled (50 due), 100,000 claimed (49 of them over)."""
    server = request.getfixturevalue("postgres_server")
    url = server.create_database()
    db = Database(url)
    db.jobs.migrate()
    db.query("ALTER TABLE lien.lien_job SET (autovacuum_enabled = off)")
    db.enqueue()
    db.query("ANALYZE lien.lien_job")
    db.query(LOAD.format(n=N, few=20_000))
    if request.param == "true":
        db.query("VACUUM ANALYZE lien.lien_job")
    yield db
    db.close()
    server.drop_database(url)


def explain(db: Database, name: str, **params: Any) -> dict[str, Any]:
    """The plan of one statement as it ran, and what it returned is undone."""
    text = db.engine.statements[name].render("pyformat")
    order: list[str] = []

    def number(match: re.Match[str]) -> str:
        if match[1] not in order:
            order.append(match[1])
        return f"${order.index(match[1]) + 1}"

    prepared = re.sub(r"%\((\w+)\)s", number, text).replace("%%", "%")
    with psycopg.connect(db.url) as connection:
        connection.execute("SET LOCAL plan_cache_mode = force_generic_plan")
        connection.execute(f"PREPARE plan AS {prepared}".encode())
        values = sql.SQL(", ").join(sql.Literal(params[p]) for p in order)
        statement = sql.SQL("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE plan({})").format(values)
        row = connection.execute(statement).fetchone()
        connection.rollback()
    assert row is not None
    plan: dict[str, Any] = row[0][0]["Plan"]
    return plan


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


def scans(plan: dict[str, Any]) -> list[dict[str, Any]]:
    """The nodes that read lien_job."""
    names = ("Relation Name", "Index Name")
    return [
        node
        for node in nodes(plan)
        if "Scan" in node["Node Type"] and any(str(node.get(n, "")).startswith("lien_job") for n in names)
    ]


def rows_read(plan: dict[str, Any]) -> float:
    """Rows looked at; a bitmap's own scan counts dead entries as well, its heap scan tells the truth."""
    kinds = ("Actual Rows", "Rows Removed by Filter", "Rows Removed by Index Recheck")
    return sum(
        node["Actual Loops"] * sum(node.get(kind, 0) for kind in kinds)
        for node in scans(plan)
        if node["Node Type"] != "Bitmap Index Scan"
    )


def check(plan: dict[str, Any], indexes: set[str], rows: int, buffers: int) -> None:
    assert scans(plan)
    for node in scans(plan):
        assert node["Node Type"] not in {"Seq Scan", "Sample Scan"}, node
    used = {node["Index Name"] for node in scans(plan) if "Index Name" in node}
    assert used == indexes
    assert rows_read(plan) <= rows
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] <= buffers


def claim_params(db: Database, limit: int) -> dict[str, Any]:
    start = db.moment(-1e9)
    return {
        "queues": ["default"] * 4, "priorities": [0, 1, 2, 3], "floor_ats": [start] * 4, "floor_ids": [0] * 4,
        "tasks": ["work"], "limit": limit, "token": uuid.uuid4(), "worker": "w", "lease": 60.0,
    }  # fmt: skip


@pytest.mark.parametrize("limit", [1, 100])
def test_claim(loaded: Database, limit: int) -> None:
    plan = explain(loaded, "claim", **claim_params(loaded, limit))
    check(plan, {"lien_job_runnable", "lien_job_pkey"}, rows=4 * limit, buffers=200 + 60 * limit)
    assert plan["Actual Rows"] == limit + 1  # and one that counts


def test_claim_starts_at_its_floor(loaded: Database) -> None:
    params = claim_params(loaded, 10)
    params["floor_ats"] = [loaded.moment(-100.0)] * 4
    plan = explain(loaded, "claim", **params)
    check(plan, {"lien_job_runnable", "lien_job_pkey"}, rows=40, buffers=1000)


@pytest.mark.parametrize("limit", [10, 1000])
def test_promote(loaded: Database, limit: int) -> None:
    plan = explain(loaded, "promote", floor=loaded.moment(-1e9), limit=limit)
    check(plan, {"lien_job_due", "lien_job_pkey"}, rows=2_000, buffers=20_000)


def first_claims(db: Database, n: int) -> tuple[list[int], uuid.UUID]:
    """Claims of one token: as a batch has them."""
    ids = [row[0] for row in db.query(
        "SELECT id FROM lien.lien_job WHERE state = 'claimed' ORDER BY id LIMIT :n", n=n)]  # fmt: skip
    token = uuid.UUID(int=7)
    db.query("UPDATE lien.lien_job SET claim_token = :t WHERE id = ANY(:ids)", t=token, ids=ids)
    return ids, token


def acks(n: int) -> dict[str, Any]:
    return {
        "results": ["1"] * n, "finals": [False] * n, "reasons": [None] * n, "outcomes": ["failed"] * n,
        "delays": [1.0] * n, "errors": ["e"] * n, "tracebacks": ["t"] * n, "untils": [None] * n,
        "starteds": [True] * n,
    }  # fmt: skip


@pytest.mark.parametrize("name", ["succeed", "succeed_with_result", "fail", "snooze", "release"])
def test_an_ack_goes_by_primary_key(loaded: Database, name: str) -> None:
    ids, token = first_claims(loaded, 50)
    plan = explain(loaded, name, ids=ids, token=token, **acks(50))
    check(plan, {"lien_job_pkey"}, rows=200, buffers=20_000)


@pytest.mark.parametrize("name", ["succeed", "fail"])
def test_a_repeated_ack_reads_nothing_much(loaded: Database, name: str) -> None:
    ids, _ = first_claims(loaded, 50)
    plan = explain(loaded, name, ids=ids, token=uuid.uuid4(), **acks(50))
    check(plan, {"lien_job_pkey"}, rows=200, buffers=2_000)


def test_renew(loaded: Database) -> None:
    ids, token = first_claims(loaded, 50)
    params = {"ids": ids, "tokens": [token] * 50, "lease": 60.0}
    check(explain(loaded, "renew", **params), {"lien_job_pkey"}, rows=200, buffers=20_000)
    check(
        explain(loaded, "still_held", ids=ids, tokens=[token] * 50),
        {"lien_job_pkey"},
        rows=100,
        buffers=1_000,
    )


@pytest.mark.parametrize("limit", [5, 100])
def test_reap(loaded: Database, limit: int) -> None:
    plan = explain(loaded, "reap", limit=limit)
    check(plan, {"lien_job_lease", "lien_job_pkey"}, rows=1_000, buffers=20_000)


def test_expire_with_nothing_to_do(loaded: Database) -> None:
    plan = explain(loaded, "expire", limit=100)
    check(plan, {"lien_job_expiry", "lien_job_pkey"}, rows=0, buffers=100)


def test_unpark_with_nothing_to_do(loaded: Database) -> None:
    plan = explain(loaded, "unpark", tasks=["work"], limit=100)
    check(plan, {"lien_job_parked", "lien_job_pkey"}, rows=0, buffers=100)


def test_looking_at_one_job(loaded: Database) -> None:
    plan = explain(loaded, "show", id=5)
    check(plan, {"lien_job_pkey"}, rows=1, buffers=100)


def test_looking_at_a_page(loaded: Database) -> None:
    """UI-03: no statement touches more than the rows shown."""
    plan = explain(loaded, "list", state=None, queue=None, task=None, upto=2**63 - 1, limit=50)
    check(plan, {"lien_job_pkey"}, rows=50, buffers=500)


def test_cancel(loaded: Database) -> None:
    plan = explain(loaded, "cancel", id=5)
    check(plan, {"lien_job_pkey"}, rows=3, buffers=500)


def test_find_unique(loaded: Database) -> None:
    plan = explain(loaded, "find_unique", queue="default", tenant=None, unique_key="k")
    check(plan, {"lien_job_unique"}, rows=1, buffers=50)
