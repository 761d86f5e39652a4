"""The schema: applied once by however many, kept in a row, apart from every other one in the database."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from urllib.parse import quote

import pytest

import lien
from lien.model import Held, NewJob
from tests.conformance.kit import Database, ack, together

FIRST = "0001_jobs"
ODD = [
    "other", "Other", "with space", "a.b", 'quo"te', "apo'strophe", "per%cent", "%s", "ümlaut", "\U0001f600",
    "select", "x" * 60, "semi;colon", "-- comment", "lien", "lien_job", "dollar$1", "back\\slash", "a:name", "{}",
]  # fmt: skip


@pytest.fixture
def empty(empty_url: str) -> Iterator[Database]:
    database = Database(empty_url)
    yield database
    database.close()


def whole_life(db: Database) -> None:
    """Every verb once, in a schema that has nothing else to do."""
    work = db.jobs.task(lambda: None, name="work")
    connection = db.connect()
    ids = [
        work.enqueue().id,
        work.using(delay=60).enqueue().id,
        *[job.id for job in work.enqueue_many([{}, {}])],
        work.using(connection, unique="k").enqueue().id,
    ]
    connection.commit()
    assert not work.using(unique="k").enqueue().created
    db.make_due(ids[1])
    assert db.promote().promoted == 1
    claims = {claim.id: claim for claim in db.claim(10)}
    assert sorted(claims) == sorted(ids)
    a, b, c, d, e = (claims[id] for id in ids)
    assert db.renew(*claims.values()).renewed == set(ids)
    db.finish(ack(a, result="1"), ack(b, "fail", error="e"), ack(c, "snooze"), ack(d, "release"))
    assert db.find_closed(ack(a)) == {a.id}
    db.end_lease(e)
    assert [r.id for r in db.reap()] == [e.id]
    assert db.jobs.cancel(b.id) == "failed"
    assert db.jobs.job(db.jobs.retry(b.id).id).origin == b.id
    db.end_life(c.id)
    assert db.expire() == 1
    assert db.park("other") == 2
    assert db.unpark("work") == 2
    assert [str(x.outcome) for x in db.jobs.attempts(a.id)] == ["succeeded"]
    assert len(db.jobs.list()) == 6
    db.run(db.engine.sleep, "w", ["default"], 1.0)
    db.run(db.engine.awake, "w")
    db.run(db.engine.upkeep)
    assert db.run(db.engine.orphans, [uuid.uuid4()]) == []
    assert db.run(db.engine.cancel_requests, ids) == set()
    again = [NewJob(task="work", args="{}")]
    assert db.run(db.engine.enqueue_again, again, [a.id])[0].id == a.id


def test_twice(empty: Database) -> None:
    jobs = empty.jobs
    assert jobs.migrations.applied() == []
    pending = jobs.migrations.pending()
    assert pending[0] == FIRST
    assert jobs.migrate() == pending
    assert jobs.migrations.pending() == []
    assert jobs.migrate() == []
    assert jobs.migrations.applied() == list(range(1, len(pending) + 1))
    jobs.migrations.require()
    whole_life(empty)


def test_the_plan_names_steps_and_shows_their_sql(empty: Database) -> None:
    plan = empty.jobs.migrations.plan()
    assert plan[0].migration == FIRST
    assert all(step.title and step.sql for step in plan)
    assert any("lien_job" in step.sql for step in plan)
    assert empty.jobs.migrations.applied() == []  # a plan does nothing
    empty.jobs.migrate()
    assert empty.jobs.migrations.plan() == []


@pytest.mark.only("postgresql")
def test_the_plan_by_hand_is_the_migration(empty: Database, postgres_url: str) -> None:
    connection = empty.autocommit()
    for step in empty.jobs.migrations.plan():
        connection.execute(step.sql)
    connection.execute("INSERT INTO lien.lien_migration (version, name) VALUES (1, 'jobs')")
    assert empty.jobs.migrations.applied() == [1]
    whole_life(empty)


def test_from_six_places_at_once(empty: Database) -> None:
    others = [lien.Lien(empty.url) for _ in range(6)]
    done = together(*[other.migrate for other in others])
    names = [name for names in done for name in names]
    assert sorted(names) == sorted(set(names))
    assert names[0] == FIRST
    for other in others:
        other.close()
    whole_life(empty)


def test_without_tables_nothing_starts(empty: Database) -> None:
    with pytest.raises(lien.SchemaError, match="lien migrate"):
        empty.jobs.migrations.require()
    with pytest.raises(lien.SchemaError, match="lien migrate"):
        empty.claim()
    with pytest.raises(lien.SchemaError, match="lien migrate"):
        empty.jobs.list()


def add_version(db: Database, version: int) -> None:
    db.query(
        "INSERT INTO lien_migration (version, name, applied_at) VALUES (:v, 'later', :now)",
        v=version,
        now=db.moment(),
    )


def test_one_version_ahead_is_lived_with(own: Database) -> None:
    newest = own.jobs.migrations.applied()[-1]
    add_version(own, newest + 1)
    own.jobs.migrations.require()
    assert own.jobs.migrate() == []
    whole_life(own)


def test_a_newer_schema_is_refused(own: Database) -> None:
    newest = own.jobs.migrations.applied()[-1]
    add_version(own, newest + 1)
    add_version(own, newest + 2)
    for verb in (own.jobs.migrations.require, own.jobs.migrate, own.jobs.migrations.pending):
        with pytest.raises(lien.SchemaError, match=r"newer Lien.*upgrade"):
            verb()


def test_gaps_are_refused(own: Database) -> None:
    """SCHEMA-03: an unknown state is refused with advice."""
    own.query("DELETE FROM lien_migration WHERE version = 1")
    add_version(own, own.engine.migrations[-1].version + 1)
    for verb in (own.jobs.migrations.require, own.jobs.migrate):
        with pytest.raises(lien.SchemaError, match="gaps"):
            verb()


def test_a_lost_version_table_is_no_empty_database(own: Database) -> None:
    own.enqueue()
    own.query("DELETE FROM lien_migration")
    with pytest.raises(lien.LienError):
        own.jobs.migrate()
    assert own.counts() == (1, 0, 0)


@pytest.mark.parametrize("schema", ODD, ids=ascii)
def test_an_odd_name(empty_url: str, schema: str) -> None:
    """SCHEMA-11."""
    if not empty_url.startswith("postgres") and not re.fullmatch(r"[A-Za-z_]\w*", schema, re.ASCII):
        with pytest.raises(lien.UsageError, match="prefix"):
            Database(empty_url, schema)
        return
    db = Database(empty_url, schema)
    db.jobs.migrate()
    whole_life(db)
    assert db.jobs.migrate() == []
    db.close()


@pytest.mark.parametrize("schema", ["", "x" * 64, "ü" * 32, "a\x00b"], ids=ascii)
def test_an_impossible_name(empty_url: str, schema: str) -> None:
    with pytest.raises(lien.UsageError):
        Database(empty_url, schema)


def test_two_in_one_database_do_not_see_each_other(empty_url: str) -> None:
    names = [None, "other_", "Other_", "lien_2_"]
    dbs = [Database(empty_url, name) for name in names]
    if not dbs[0].is_postgres:  # SQLite's names know no case
        dbs.pop(2).close()
    for db in dbs:
        db.jobs.migrate()
        assert db.counts() == (0, 0, 0)
        whole_life(db)
    counts = [db.counts() for db in dbs]
    dbs[0].query("DELETE FROM lien_job")
    dbs[0].query("DELETE FROM lien_history")
    assert [db.counts() for db in dbs[1:]] == counts[1:]
    assert len({db.engine.channel for db in dbs}) == len(dbs) or not dbs[0].is_postgres
    connection = dbs[0].connect()
    tasks = [db.jobs.task(lambda: None, name="one") for db in dbs]
    for task in tasks:  # several outboxes in one transaction
        task.using(connection, queue="shared").enqueue()
    connection.commit()
    for db in dbs:
        assert len(db.claim(5, queue="shared", tasks=["one"])) == 1
        db.close()


@pytest.mark.only("postgresql")
@pytest.mark.parametrize("path", ["", "pg_catalog", "nowhere", '"$user"'])
def test_an_unusual_search_path(empty_url: str, path: str, engine: str) -> None:
    db = Database(f"{empty_url}?options={quote(f'-csearch_path={path}')}")
    assert db.value("SHOW search_path") in {path, '""'}
    db.jobs.migrate()
    whole_life(db)
    db.close()


# -- the last ids --


def set_next_id(db: Database, id: int) -> None:
    if db.is_postgres:
        db.query("SELECT setval('lien.lien_job_id_seq', :id, false)", id=id)
    else:
        db.query("UPDATE sqlite_sequence SET seq = :last WHERE name = 'lien_job'", last=id - 1)


@pytest.mark.parametrize("first", [2**31 - 2, 2**53 - 2, 2**63 - 20])
def test_large_ids_go_through_every_verb(own: Database, first: int) -> None:
    """SCHEMA-05."""
    set_next_id(own, first)
    whole_life(own)
    assert min(own.states()) == first
    last = own.jobs.list()[0]
    assert own.jobs.job(last.id) == last
    assert own.run(own.engine.renew, [Held(2**63 - 1, uuid.uuid4())], 1.0).lost == {2**63 - 1}


def test_the_very_last_ids(own: Database) -> None:
    set_next_id(own, 2**63 - 3)
    work = own.jobs.task(lambda: None, name="work")
    ids = [work.enqueue().id for _ in range(3)]
    assert ids == [2**63 - 3, 2**63 - 2, 2**63 - 1]
    assert [r.id for r in own.jobs.list()] == ids[::-1]
    claims = own.claim(10)
    assert [claim.id for claim in claims] == ids
    assert own.renew(*claims).renewed == set(ids)
    before = own.everything()
    for enqueue in (
        work.enqueue,
        lambda: work.enqueue_many([{}, {}]),
        own.enqueue,
        lambda: own.enqueue(unique_key="k"),
    ):
        with pytest.raises(lien.DatabaseError) as caught:
            enqueue()
        assert "cannot be reached" not in str(caught.value)
    assert own.everything() == before
    own.finish(*[ack(claim, "fail", final=True, error="e") for claim in claims])
    assert own.counts() == (0, 3, 3)
    with pytest.raises(lien.DatabaseError):  # not even an id that has become free below
        work.enqueue()


def test_large_fences(own: Database) -> None:
    if own.is_postgres:
        own.query("SELECT setval('lien.lien_fence', :n)", n=2**53)
    else:
        own.query("UPDATE lien_fence SET value = :n", n=2**53)
    assert own.claimed().fence == 2**53 + 1


def test_the_server_is_named(db: Database) -> None:
    server = db.run(db.engine.server)
    assert server.too_old is None
    assert not server.read_only
    assert server.version[0].isdigit()
