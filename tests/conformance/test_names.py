"""Names of queues, tasks and keys: any text of 1 to 200 characters, kept and compared exactly."""

from __future__ import annotations

from typing import Any

import pytest

import lien
from lien.model import JobFilter
from tests.conformance.kit import Database

ODD = [
    "a", "0", "False", "None", "null", "x" * 200, "\U0001f600" * 200, "'", '"', "''; DROP TABLE lien_job; --",
    "a.b", "lien.lien_job", "lien_job", "%", "%s", "%(queue)s", ":queue", "$1", "?", "\\", "\\'", "ümlaut", "Ümlaut",
    "e\u0301", "\u00e9", " ", "a ", " a", "\t", "a\nb", "A", "ß", "ss", "\u200b", "{}", "[0]", "{a,b}", "NULL",
    "*", "_", "-", "/", "default\u0000"[:-1], "\x01", "\x7f", "\ufeff",
]  # fmt: skip
BAD: list[Any] = ["", "x" * 201, "a\x00", "\ud800", 0, 7, False, True, b"a", 1.5, ["a"]]


def name(value: object) -> str:
    return ascii(value)[:30]


@pytest.mark.parametrize("text", ODD, ids=name)
def test_an_odd_name_goes_all_the_way(db: Database, text: str) -> None:
    task = db.jobs.task(lambda: None, name=text)
    job = task.using(queue=text, unique=text).enqueue()
    assert task.using(queue=text, unique=text).enqueue() == lien.Enqueued(job.id, created=False)
    bulk = task.using(queue=text).enqueue_many([{}, {}])
    db.enqueue("other", queue=text)
    record = db.jobs.job(job.id)
    assert (record.queue, record.task, record.unique_key) == (text, text, text)
    assert len(db.jobs.list(JobFilter(queue=text, task=text))) == 3
    cycle = db.cycle(claim=db.request(9, tasks=[text], queue=text, worker=text))
    assert [(c.id, c.queue, c.task) for c in cycle.claims] == [
        (id, text, text) for id in (job.id, *(j.id for j in bulk))
    ]
    assert cycle.parked == 1
    first, second, third = cycle.claims
    db.ack(first, "fail", final=True, error=text, traceback=text)
    db.jobs.retry(job.id)
    db.end_lease(second)
    ((_, _, worker, *_),) = db.reap()
    assert worker == text
    db.ack(third)
    (attempt,) = db.jobs.attempts(job.id)
    assert (attempt.worker, attempt.error, attempt.traceback) == (text, text, text)
    assert db.unpark("other") == 1
    assert db.run(db.engine.park, text, 2, [text], 9) == 1
    db.run(db.engine.sleep, text, [text], 1.0)
    db.run(db.engine.awake, text)


def test_names_that_look_alike_are_different(db: Database) -> None:
    for text in ODD:
        db.enqueue(text, queue=text, unique_key=text)
    assert len(set(ODD)) == len(ODD) == db.counts()[0]
    for text in ODD:
        (record,) = db.jobs.list(JobFilter(queue=text))
        assert record.queue == text
        (claim,) = db.claim(10, tasks=[text], queue=text)
        assert claim.task == text


def test_keys_that_look_alike_are_different(db: Database) -> None:
    for text in ODD:
        db.enqueue(unique_key=text)
    assert db.counts()[0] == len(ODD)


@pytest.mark.parametrize("bad", BAD, ids=name)
def test_what_is_no_name_is_refused(db: Database, bad: Any) -> None:
    """ENQUEUE-03: refused, never treated as not given."""
    task = db.jobs.task(lambda: None, name="work")
    for option in ("queue", "unique"):
        with pytest.raises(lien.UsageError, match=option):
            task.using(**{option: bad})
    with pytest.raises(lien.UsageError, match="queue"):
        db.jobs.task(queue=bad)
    with pytest.raises(lien.UsageError, match="task name"):
        db.jobs.task(name=bad)(lambda: None)
    assert db.counts() == (0, 0, 0)
