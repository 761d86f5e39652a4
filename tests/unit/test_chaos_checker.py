from __future__ import annotations

from dataclasses import replace

import pytest

from chaos.checker import (
    INVARIANTS,
    SECOND,
    Attempt,
    Cancelled,
    Change,
    Drain,
    Effect,
    Ending,
    Job,
    Log,
    Row,
    Told,
    check,
    story,
    violations,
)
from chaos.mutants import MUTANTS, apply
from lien.engines.postgres import Postgres
from lien.engines.sqlite import Sqlite
from lien.machine import TABLE

LEASE = 2 * SECOND
MARK = "effect:p1:1"


class Book:
    """Writes the history of one job, one second for each change."""

    def __init__(self, id: int = 1, mark: str = MARK, **row) -> None:
        self.job = Job(id)
        self.seq = id * 1000
        self.row: Row | None = None
        self.enqueue(mark=mark, **row)

    @property
    def at(self) -> int:
        return self.seq % 1000 * SECOND

    def _next(self) -> int:
        self.seq += 1
        return self.seq

    def change(self, new: Row | None, who: str = "w1") -> Book:
        self._next()
        self.job.changes.append(Change(self.seq, self.at, who, self.row, new))
        self.row = new
        return self

    def to(self, who: str = "w1", **changes) -> Book:
        return self.change(self.row._replace(**changes), who)

    def enqueue(self, **row) -> Book:
        return self.change(Row(**{"state": "runnable", "available_at": SECOND, **row}), "p1")

    def claim(self, who: str = "w1", token: str | None = None, **changes) -> Book:
        at = (self.seq + 1) % 1000 * SECOND
        attempt = self.row.attempt + 1
        claim = {
            "state": "claimed",
            "token": token or f"token{attempt}",
            "fence": self.row.fence + 7,
            "attempt": attempt,
            "claimed_at": at,
            "lease_expires_at": at + LEASE,
            "worker": who,
        }
        return self.to(who, **(claim | changes))

    def close(self, outcome: str, who: str = "w1", **changes) -> Book:
        """Write the attempt row of the claim."""
        row = self.row
        self._next()
        values = {
            "op": "I",
            "attempt": row.attempt,
            "outcome": outcome,
            "reason": None,
            "token": row.token,
            "fence": row.fence,
            "worker": row.worker,
            "started_at": row.claimed_at,
            "ended_at": self.at,
        }
        self.job.attempts.append(Attempt(self.seq, self.at, who, **(values | changes)))
        return self

    def back(self, state: str = "scheduled", who: str = "w1", **changes) -> Book:
        free = {"token": None, "claimed_at": None, "lease_expires_at": None, "worker": None}
        return self.to(who, **({"state": state, "available_at": self.at, "cancel": False} | free | changes))

    def keep(self, state: str, reason: str | None = None, who: str = "w1", **changes) -> Book:
        """Write the history row."""
        row = self.row
        self._next()
        values = {
            "op": "I",
            "state": state,
            "reason": reason,
            "fence": row.fence,
            "attempt": row.attempt,
            "failures": row.failures,
            "lost": row.lost,
            "interrupted": row.interrupted,
            "finished_at": self.at,
        }
        self.job.endings.append(Ending(self.seq, self.at, who, **(values | changes)))
        return self

    def end(self, state: str, reason: str | None = None, who: str = "w1", **changes) -> Book:
        return self.keep(state, reason, who, **changes).change(None, who)

    def succeed(self, who: str = "w1") -> Book:
        self.job.effects.append(Effect(self.row.attempt, self.row.fence, MARK, who))
        return self.close("succeeded", who).end("succeeded", who=who)

    def fail(self, who: str = "w1") -> Book:
        return self.close("failed", who).back(failures=self.row.failures + 1, lost=0, who=who)

    def promote(self) -> Book:
        return self.to("w2", state="runnable")


def log(*books: Book, **facts) -> Log:
    jobs = {book.job.id: book.job for book in books}
    return Log(**{"jobs": jobs, "expected": {book.job.mark: "yes" for book in books}, **facts})


def broken(*books: Book, **facts) -> set[str]:
    return {v.invariant for v in violations(check(log(*books, **facts)))}


def test_a_clean_history_of_every_transition_passes():
    busy = Book()
    busy.to("w1", state="scheduled", reason="unknown_task", available_at=busy.at + 15 * SECOND)  # park
    busy.to("w2", state="runnable", reason=None, available_at=busy.at)  # unpark
    busy.claim().to(lease_expires_at=busy.at + LEASE).fail().promote()
    busy.claim().close("snoozed").back().promote()
    busy.claim().close("released").back("runnable", available_at=busy.row.available_at)
    busy.claim().close("interrupted").back("runnable", interrupted=1)
    busy.claim()
    busy.seq += 5
    busy.close("lost", "w2").back(who="w2", lost=1).promote()
    busy.claim().to("operator", cancel=True).succeed()
    busy.job.told.append(Told("w1", busy.at, "succeeded", 1, 6))
    cancelled = Book(2, "noop:p1:2").end("failed", "cancelled", "operator")
    expired = Book(3, "noop:p1:3", expires_at=2 * SECOND).end("failed", "expired")
    flagged = Book(4, "noop:p1:4").claim().to("operator", cancel=True).close("failed")
    flagged.end("failed", "cancelled", failures=1)
    copy = Book(5, "noop:p1:4", origin=4, failures=19).claim().close("failed")
    copy.end("failed", "exhausted", failures=20)
    everything = log(
        busy,
        cancelled,
        expired,
        flagged,
        copy,
        expected={MARK: "yes", **{f"noop:p1:{n}": "yes" for n in (2, 3, 4)}, "noop:p1:9": "no", "noop:p1:10": "maybe"},
        cancels=[Cancelled(1, 0, "claimed"), Cancelled(2, 0, "failed")],
        drains=[Drain("w3", 0, SECOND, 0, disturbed=False)],
        repeats=3,
    )
    tallies = check(everything)

    assert violations(tallies) == []
    assert [n for n, tally in tallies.items() if not tally.checked and n != "U"] == []
    made = {step.name for job in everything.jobs.values() for step in job.steps}
    assert made == set(TABLE)


def _lost() -> set[str]:
    return broken(Book().claim())


def _never_came() -> set[str]:
    return broken(Book().claim().succeed(), expected={MARK: "yes", "noop:p1:2": "yes"})


def _rolled_back() -> set[str]:
    return broken(Book().claim().succeed(), expected={MARK: "no"})


def _nobody_enqueued() -> set[str]:
    return broken(Book().claim().succeed(), expected={})


def _copy_of_nothing() -> set[str]:
    return broken(Book(origin=99).claim().succeed(), expected={})


def _other_token() -> set[str]:
    book = Book().claim()
    return broken(book.close("succeeded", fence=99).end("succeeded"))


def _told_a_stale_success() -> set[str]:
    book = Book().claim()
    book.seq += 5
    book.close("lost", "w2").back(lost=1, who="w2").promote().claim("w2").succeed("w2")
    book.job.told.append(Told("w1", book.at, "succeeded", 1, 1))
    return broken(book)


def _told_twice() -> set[str]:
    book = Book().claim().succeed()
    book.job.told += [Told("w1", 0, "succeeded", 1, 1), Told("w2", 0, "failed", 1, 1)]
    return broken(book)


def _ended_twice() -> set[str]:
    return broken(Book().claim().close("succeeded").keep("succeeded").keep("failed", "lost").change(None))


def _still_alive() -> set[str]:
    return broken(Book().claim().close("succeeded").keep("succeeded"))


def _history_changed() -> set[str]:
    book = Book().claim()
    return broken(book.close("succeeded").keep("succeeded").keep("succeeded", op="U").change(None))


def _revived() -> set[str]:
    book = Book().claim().succeed()
    return broken(book.enqueue(mark=MARK))


def _attempt_missing() -> set[str]:
    book = Book().claim().fail().promote().claim().succeed()
    del book.job.attempts[0]
    return broken(book)


def _attempt_updated() -> set[str]:
    book = Book().claim().close("failed", op="U")
    return broken(book.succeed())


def _attempt_twice() -> set[str]:
    book = Book().claim().close("succeeded")
    return broken(book.succeed())


def _attempt_not_counted() -> set[str]:
    return broken(Book().claim().fail().promote().claim(attempt=1, token="other").succeed())


def _same_fence() -> set[str]:
    return broken(Book().claim(fence=7).fail().promote().claim(fence=7).succeed())


def _claimed_while_claimed() -> set[str]:
    return broken(Book().claim().claim("w2").succeed("w2"))


def _attempts_overlap() -> set[str]:
    book = Book().claim().fail().promote().claim().succeed()
    book.job.attempts[0] = book.job.attempts[0]._replace(ended_at=book.at + SECOND)
    return broken(book)


def _too_early() -> set[str]:
    return broken(Book(available_at=50 * SECOND).claim().succeed())


def _delay_forgotten() -> set[str]:
    return broken(Book().claim().succeed(), not_before={MARK: 50 * SECOND})


def _failure_not_counted() -> set[str]:
    return broken(Book().claim().close("failed").back().promote().claim().succeed())


def _overdrawn() -> set[str]:
    book = Book(lost=1, max_lost=2).claim()
    book.seq += 5
    return broken(book.close("lost", "w2").back(lost=2, who="w2").promote().claim().succeed())


def _exhausted_too_soon() -> set[str]:
    return broken(Book().claim().close("failed").end("failed", "exhausted", failures=1))


def _cancel_ignored() -> set[str]:
    return broken(Book().claim().to("operator", cancel=True).fail().promote().claim().succeed())


def _cancelled_in_vain() -> set[str]:
    return broken(Book().claim().succeed(), cancels=[Cancelled(1, 0, "failed")])


def _release_costs() -> set[str]:
    return broken(Book().claim().close("released").back("runnable", interrupted=1).claim().succeed())


def _recovered_late() -> set[str]:
    book = Book().claim()
    book.seq += 60
    book.close("lost", "w2").back(lost=1, who="w2").promote().claim().succeed()
    return broken(book, well=[(0, 90 * SECOND)])


def _long_lease() -> set[str]:
    return broken(Book().claim(lease_expires_at=900 * SECOND).succeed())


def _slow_drain() -> set[str]:
    return broken(Book().claim().succeed(), drains=[Drain("w1", 0, 60 * SECOND, 0, disturbed=True)])


def _failed_drain() -> set[str]:
    return broken(Book().claim().succeed(), drains=[Drain("w1", 0, SECOND, 1, disturbed=False)])


def _left_behind() -> set[str]:
    book = Book().claim()
    book.seq += 5
    book.close("lost", "w2").back(lost=1, who="w2").promote().claim("w2").succeed("w2")
    return broken(book, drains=[Drain("w1", 2 * SECOND, 3 * SECOND, 0, disturbed=False)])


def _enqueued_twice() -> set[str]:
    return broken(Book(1).claim().succeed(), Book(2).claim().succeed())


def _late_word_accepted() -> set[str]:
    return broken(Book().claim().succeed(), accepted_repeats=[(1, "a renewal")])


def _by_another_worker() -> set[str]:
    return broken(Book().claim("w1").succeed("w2"))


def _reaped_alive() -> set[str]:
    book = Book().claim(lease_expires_at=50 * SECOND)
    return broken(book.close("lost", "w2").back(lost=1, who="w2").promote().claim().succeed())


def _promoted_early() -> set[str]:
    return broken(Book(state="scheduled", available_at=50 * SECOND).promote())


def _expired_early() -> set[str]:
    return broken(Book(expires_at=50 * SECOND).end("failed", "expired"))


def _cancelled_while_claimed() -> set[str]:
    return broken(Book().claim().end("failed", "cancelled", "operator"))


def _no_arrow() -> set[str]:
    return broken(Book().to(state="scheduled").promote().claim().succeed())


def _gap() -> set[str]:
    book = Book().claim()
    book.row = book.row._replace(lease_expires_at=book.at + LEASE + 1)
    return broken(book.succeed())


def _two_of_a_key() -> set[str]:
    one, two = Book(1, unique_key="k"), Book(2, "noop:p1:2", unique_key="k")
    return broken(one, two)


def _no_effect() -> set[str]:
    book = Book().claim().succeed()
    book.job.effects.clear()
    return broken(book)


def _effect_of_no_claim() -> set[str]:
    book = Book().claim().succeed()
    book.job.effects.append(Effect(9, 9, MARK, "w1"))
    return broken(book)


def _other_result() -> set[str]:
    book = Book(mark="result:p1:1").claim().close("succeeded")
    return broken(book.end("succeeded", result="result:p1:2"))


BROKEN = {
    _lost: "1",
    _never_came: "1",
    _rolled_back: "1",
    _nobody_enqueued: "1",
    _copy_of_nothing: "1",
    _other_token: "2",
    _told_a_stale_success: "2",
    _told_twice: "2",
    _ended_twice: "3",
    _still_alive: "3",
    _history_changed: "3",
    _revived: "3",
    _attempt_missing: "4",
    _attempt_updated: "4",
    _attempt_twice: "18",
    _attempt_not_counted: "4",
    _same_fence: "5",
    _claimed_while_claimed: "6",
    _attempts_overlap: "6",
    _too_early: "9",
    _delay_forgotten: "9",
    _failure_not_counted: "10",
    _overdrawn: "10",
    _exhausted_too_soon: "10",
    _cancel_ignored: "12",
    _cancelled_in_vain: "12",
    _release_costs: "13",
    _recovered_late: "15",
    _long_lease: "15",
    _slow_drain: "17",
    _failed_drain: "17",
    _left_behind: "17",
    _enqueued_twice: "18",
    _late_word_accepted: "18",
    _by_another_worker: "T",
    _reaped_alive: "T",
    _promoted_early: "T",
    _expired_early: "T",
    _cancelled_while_claimed: "T",
    _no_arrow: "T",
    _gap: "T",
    _two_of_a_key: "U",
    _no_effect: "E",
    _effect_of_no_claim: "E",
    _other_result: "E",
}


@pytest.mark.parametrize("history", BROKEN, ids=lambda f: f.__name__.strip("_"))
def test_a_broken_history_is_reported(history):
    assert BROKEN[history] in history()


def test_every_invariant_has_a_broken_history():
    assert set(BROKEN.values()) == set(INVARIANTS)


@pytest.mark.parametrize(
    ("well", "outages"),
    [
        ([], []),
        ([(0, 90)], [(3, 58)]),
        ([(0, 8), (8, 15), (20, 27)], []),
        ([(0, 90)], [(8, 9), (14, 15), (20, 58)]),
    ],
    ids=["nobody well", "a long outage", "each for a short time", "many outages"],
)
def test_recovery_is_late_only_where_a_worker_was_well_for_long_enough(well, outages):
    book = Book().claim()
    book.seq += 60
    book.close("lost", "w2").back(lost=1, who="w2").promote().claim().succeed()
    spans, gaps = ([(start * SECOND, end * SECOND) for start, end in times] for times in (well, outages))

    assert "15" not in broken(book, well=spans, outages=gaps)


def test_a_claim_lost_while_the_drain_was_disturbed_is_no_violation():
    book = Book().claim()
    book.seq += 5
    book.close("lost", "w2").back(lost=1, who="w2").promote().claim("w2").succeed("w2")
    drain = Drain("w1", 2 * SECOND, 3 * SECOND, 0, disturbed=False)

    assert "17" in broken(book, drains=[drain])
    assert "17" not in broken(book, drains=[drain._replace(disturbed=True)])


def test_the_story_of_a_job_tells_each_change_in_order():
    book = Book().claim().fail().promote().claim().succeed()
    lines = story(book.job).splitlines()
    found = [word for line in lines for word in ("enqueue", "claim ", "fail ", "promote", "succeed ") if word in line]

    assert found == ["enqueue", "claim ", "fail ", "promote", "claim ", "succeed "]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: f"{m.engine}-{m.name}")
def test_each_mutant_fits_the_statements(mutant):
    engine = Postgres() if mutant.engine == "postgresql" else Sqlite()

    apply(mutant, engine)


def test_a_mutant_that_fits_nothing_is_refused():
    with pytest.raises(ValueError, match="changes nothing"):
        apply(replace(MUTANTS[0], edits=(("no such text", ""),)), Postgres())
