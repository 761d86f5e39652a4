"""What the database itself refuses, whoever writes: each bad row is tried by hand."""

from __future__ import annotations

import sqlite3
from typing import Any

import psycopg
import pytest

from tests.conformance.kit import Database

REFUSED = (psycopg.errors.IntegrityError, psycopg.errors.DataError, sqlite3.IntegrityError)
TOKEN = "0123456789abcdef0123456789abcdef"


def refused(db: Database, sql: str, **params: Any) -> None:
    before = db.everything()
    with pytest.raises(REFUSED):
        db.query(sql, **params)
    assert db.everything() == before


def staged(db: Database, state: str) -> int:
    id = db.enqueue(delay=60.0 if state == "scheduled" else 0.0)
    if state == "claimed":
        db.claim()
    return id


@pytest.mark.parametrize(
    ("state", "change"),
    [
        # states and their columns
        ("runnable", "state = 'done'"),
        ("runnable", "state = ''"),
        ("runnable", "state = 'Runnable'"),
        ("runnable", "state = 'succeeded'"),
        ("runnable", "state = 'failed'"),
        ("runnable", "state = NULL"),
        ("runnable", "state = 'claimed'"),
        ("scheduled", "state = 'claimed'"),
        ("claimed", "state = 'runnable'"),
        ("claimed", "state = 'scheduled'"),
        ("claimed", "claim_token = NULL"),
        ("claimed", "claimed_by = NULL"),
        ("claimed", "claimed_at = NULL"),
        ("claimed", "lease_expires_at = NULL"),
        ("claimed", "attempt = 0"),
        ("claimed", "fence = 0"),
        ("claimed", "fence = -1"),
        ("runnable", f"claim_token = '{TOKEN}'"),
        ("runnable", "claimed_by = 'w'"),
        ("runnable", "claimed_at = created_at"),
        ("runnable", "lease_expires_at = created_at"),
        ("scheduled", "lease_expires_at = created_at"),
        ("scheduled", f"claim_token = '{TOKEN}'"),
        # reasons
        ("runnable", "reason = 'unknown_task'"),
        ("claimed", "reason = 'unknown_task'"),
        ("scheduled", "reason = 'cancelled'"),
        ("scheduled", "reason = ''"),
        # numbers
        ("runnable", "priority = -1"),
        ("runnable", "priority = 4"),
        ("runnable", "priority = NULL"),
        ("runnable", "attempt = -1"),
        ("runnable", "failures = -1"),
        ("runnable", "lost = -1"),
        ("runnable", "interrupted = -1"),
        ("runnable", "max_failures = 0"),
        ("runnable", "max_lost = 0"),
        ("runnable", "max_interrupted = 0"),
        ("runnable", "max_failures = NULL"),
        ("runnable", "attempt = 2147483648"),
        ("runnable", "fence = NULL"),
        ("runnable", "timeout = 0"),
        ("runnable", "timeout = -1"),
        ("runnable", "timeout = NULL"),
        ("runnable", "timeout = 1e308"),
        ("runnable", "backoff_base = -1"),
        ("runnable", "backoff_cap = -1"),
        ("runnable", "backoff_base = 1e308"),
        ("runnable", "backoff_cap = 1e308"),
        ("runnable", "backoff_cap = NULL"),
        # names and payload
        ("runnable", "queue = ''"),
        ("runnable", "task = ''"),
        ("runnable", "tenant = ''"),
        ("runnable", "ordering_key = ''"),
        ("runnable", "unique_key = ''"),
        ("runnable", "queue = NULL"),
        ("runnable", "task = NULL"),
        ("runnable", "args = '[]'"),
        ("runnable", "args = '7'"),
        ("runnable", "args = 'null'"),
        ("runnable", "args = '{'"),
        ("runnable", "args = ''"),
        ("runnable", "args = NULL"),
        ("runnable", "headers = '{'"),
        # times
        ("runnable", "available_at = NULL"),
        ("runnable", "created_at = NULL"),
    ],
)
def test_a_bad_live_row(db: Database, state: str, change: str) -> None:
    id = staged(db, state)
    refused(db, f"UPDATE lien_job SET {change} WHERE id = :id", id=id)


@pytest.mark.parametrize("state", ["runnable", "scheduled"])
def test_a_cancel_request_is_for_claimed_jobs(db: Database, state: str) -> None:
    id = staged(db, state)
    true = "true" if db.is_postgres else "1"
    refused(db, f"UPDATE lien_job SET cancel_requested = {true} WHERE id = :id", id=id)


@pytest.mark.parametrize("column", ["available_at", "expires_at"])
@pytest.mark.parametrize("year", ["1899-12-31", "9999-12-31", "-infinity", "infinity"])
def test_a_time_that_no_client_reads(db: Database, column: str, year: str) -> None:
    id = staged(db, "runnable")
    value: Any = f"{year} 00:00:00+00" if year[-1].isdigit() else year
    if not db.is_postgres:
        value = {"1899-12-31": -2_209_075_200, "9999-12-31": 253_402_214_400}.get(year, 2**53)
        value = value * 10**6 if abs(value) < 2**50 else (2**63 - 1 if year == "infinity" else -(2**63))
    refused(db, f"UPDATE lien_job SET {column} = :value WHERE id = :id", value=value, id=id)


@pytest.mark.only("postgresql")
@pytest.mark.parametrize("column", ["timeout", "backoff_base", "backoff_cap"])
@pytest.mark.parametrize("value", ["NaN", "Infinity"])
def test_a_duration_that_is_no_number(db: Database, column: str, value: str) -> None:
    id = staged(db, "runnable")
    refused(db, f"UPDATE lien_job SET {column} = '{value}' WHERE id = :id", id=id)


@pytest.mark.only("sqlite")
@pytest.mark.parametrize(
    "change",
    [
        "id = 'x'",
        "priority = 'x'",
        "attempt = 1.5",
        "available_at = '2030-01-01'",
        "created_at = 'now'",
        "timeout = 'x'",
        "task = x'00'",
        "cancel_requested = 2",
        "fence = 'x'",
    ],
)
def test_a_value_of_another_type(db: Database, change: str) -> None:
    """PostgreSQL has types; here the table is STRICT, so SCHEMA-09 cannot come back."""
    id = staged(db, "runnable")
    refused(db, f"UPDATE lien_job SET {change} WHERE id = :id", id=id)


@pytest.mark.only("sqlite")
@pytest.mark.parametrize("token", ["", "x", TOKEN.upper(), TOKEN[:-1], TOKEN + "0", "g" * 32])
def test_a_token_that_is_none(db: Database, token: str) -> None:
    id = staged(db, "claimed")
    refused(db, "UPDATE lien_job SET claim_token = :token WHERE id = :id", token=token, id=id)


def test_two_live_jobs_of_one_key(db: Database) -> None:
    db.enqueue(unique_key="k")
    other = db.enqueue()
    refused(db, "UPDATE lien_job SET unique_key = 'k' WHERE id = :id", id=other)
    db.set(other, unique_key="k", queue="other")  # another queue is another scope
    third = db.enqueue()
    db.set(third, unique_key="k", tenant="t")  # another tenant as well
    fourth = db.enqueue()
    db.set(fourth, tenant="t")
    refused(db, "UPDATE lien_job SET unique_key = 'k' WHERE id = :id", id=fourth)


def test_two_claims_of_one_ordering_key(db: Database) -> None:
    """P9: mutual exclusion is a constraint, the last word."""
    one, two = db.claimed(), db.claimed()
    db.set(one.id, ordering_key="k")
    refused(db, "UPDATE lien_job SET ordering_key = 'k' WHERE id = :id", id=two.id)
    db.set(two.id, ordering_key="k", tenant="t")
    three = db.claimed()
    db.set(three.id, ordering_key="k", queue="other")


def test_two_jobs_of_one_id(db: Database) -> None:
    id, other = db.enqueue(), db.enqueue()
    refused(db, "UPDATE lien_job SET id = :id WHERE id = :other", id=id, other=other)
    refused(db, "UPDATE lien_job SET id = NULL WHERE id = :other", other=other)


@pytest.mark.parametrize(
    ("state", "change"),
    [
        ("succeeded", "reason = 'lost'"),
        ("succeeded", "reason = 'unknown_task'"),
        ("failed", "reason = NULL"),
        ("failed", "reason = 'unknown_task'"),
        ("failed", "reason = 'because'"),
        ("failed", "result = '1'"),
        ("failed", "state = 'runnable'"),
        ("failed", "state = 'claimed'"),
        ("failed", "state = 'over'"),
        ("failed", "state = NULL"),
        ("succeeded", "result = '{'"),
        ("succeeded", "finished_at = NULL"),
        ("succeeded", "id = NULL"),
        ("succeeded", "args = NULL"),
        ("succeeded", "task = NULL"),
        ("succeeded", "attempt = NULL"),
    ],
)
def test_a_bad_row_of_the_history(db: Database, state: str, change: str) -> None:
    claim = db.claimed()
    if state == "succeeded":
        db.ack(claim)
    else:
        db.ack(claim, "fail", final=True, error="e")
    refused(db, f"UPDATE lien_history SET {change} WHERE id = :id", id=claim.id)


@pytest.mark.parametrize(
    "change",
    [
        "outcome = 'done'",
        "outcome = NULL",
        "outcome = 'Lost'",
        "job_id = NULL",
        "attempt = NULL",
        "worker = NULL",
        "claim_token = NULL",
        "fence = NULL",
        "started_at = NULL",
        "ended_at = NULL",
    ],
)
def test_a_bad_record_of_an_attempt(db: Database, change: str) -> None:
    claim = db.claimed()
    db.ack(claim)
    refused(db, f"UPDATE lien_attempt SET {change} WHERE job_id = :id", id=claim.id)


def test_a_version_comes_once(db: Database) -> None:
    (version,) = min(db.query("SELECT version FROM lien_migration"))
    with pytest.raises(REFUSED):
        db.query(
            "INSERT INTO lien_migration (version, name, applied_at) VALUES (:v, 'x', :now)",
            v=version,
            now=db.moment(),
        )


def test_a_good_row_by_hand_is_a_job(db: Database) -> None:
    """SCHEMA-09: defaults of plain SQL are what the library itself writes."""
    columns, values = "task, state, available_at", "'work', 'runnable', :now"
    if not db.is_postgres:
        columns, values = columns + ", created_at", values + ", :now"
    db.query(f"INSERT INTO lien_job ({columns}) VALUES ({values})", now=db.moment())
    ((by_hand,),) = db.query("SELECT id FROM lien_job")
    by_library = db.enqueue()
    one, two = db.job(by_hand), db.job(by_library)
    assert one is not None
    assert two is not None
    times = {"id", "available_at", "created_at"}
    assert {k: v for k, v in one.items() if k not in times} == {k: v for k, v in two.items() if k not in times}
    assert [type(one[k]) for k in times] == [type(two[k]) for k in times]
    assert [c.id for c in db.claim(5)] == [by_hand, by_library]
