"""SQLite: time spent waiting for the write lock is nobody's silence, and no part of a lease."""

from __future__ import annotations

import threading

import pytest

from lien import State, clock
from lien.commands import Begin
from lien.model import Held
from tests.conformance.kit import Database, wait_for

pytestmark = pytest.mark.only("sqlite")


def test_a_reaper_that_waited_for_the_lock_takes_nothing(db: Database) -> None:
    """The owners may have been waiting for the same lock, to renew."""
    claim = db.claimed()
    db.end_lease(claim)
    driver = db.store.connect()
    op = db.engine.reap(10)
    command = next(op)
    while not isinstance(command, Begin):
        command = op.send(driver.execute(command))
    waited = clock.host_time_us() + 300_000
    wait_for(lambda: clock.host_time_us() > waited)
    taken = None
    while taken is None:
        try:
            command = op.send(driver.execute(command))
        except StopIteration as end:
            taken = end.value
    driver.close()
    assert taken == []
    assert db.jobs.job(claim.id).state is State.CLAIMED
    assert [job.id for job in db.run(db.engine.reap, 10)] == [claim.id]  # at once it would have been taken


def test_a_lease_counts_from_behind_the_lock(db: Database) -> None:
    claim = db.claimed()
    holder = db.store.connect()
    holder.execute(Begin())
    renewing = threading.Thread(target=lambda: db.run(db.engine.renew, [Held(claim.id, claim.token)], 0.5))
    renewing.start()
    over = clock.host_time_us() + 1_000_000
    wait_for(lambda: clock.host_time_us() > over)
    holder.abandon()
    holder.close()
    renewing.join()
    expires = db.jobs.job(claim.id).lease_expires_at
    assert expires is not None
    assert expires.timestamp() * 1_000_000 > over
