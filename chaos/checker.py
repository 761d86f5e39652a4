"""The invariants: pure functions over what a run left behind.

A `Log` holds the shadow log (every change of every row, written by triggers) and what producers, workers, operators
and the harness saw. Each invariant looks at all of it and reports to a `Tally`. Numbers follow the list of invariants
in `INVARIANTS`; times are microseconds by the database's clock, which is this machine's.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from lien.machine import TABLE, TERMINAL, WAITING, Guard, State

SECOND = 1_000_000
CLOCK_STEP = 2_000
"""How far two looks at the clock may differ: SQLite's own clock has milliseconds."""


class Row(NamedTuple):
    """A live job at one moment."""

    state: str
    token: str | None = None
    fence: int = 0
    attempt: int = 0
    failures: int = 0
    max_failures: int = 20
    lost: int = 0
    max_lost: int = 20
    interrupted: int = 0
    max_interrupted: int = 20
    cancel: bool = False
    reason: str | None = None
    available_at: int = 0
    expires_at: int | None = None
    claimed_at: int | None = None
    lease_expires_at: int | None = None
    worker: str | None = None
    queue: str = "default"
    unique_key: str | None = None
    origin: int | None = None
    mark: str | None = None

    @property
    def counters(self) -> tuple[int, int, int]:
        """What was spent of the budgets: failures, lost, interrupted."""
        return self.failures, self.lost, self.interrupted


class Change(NamedTuple):
    """One change of a live job."""

    seq: int
    at: int
    who: str
    old: Row | None
    new: Row | None


class Attempt(NamedTuple):
    """A write to the attempts of a job; `op` is I, U or D."""

    seq: int
    at: int
    who: str
    op: str
    attempt: int
    outcome: str
    reason: str | None
    token: str
    fence: int
    worker: str
    started_at: int
    ended_at: int


class Ending(NamedTuple):
    """A write to the history of terminal jobs; `op` is I, U or D."""

    seq: int
    at: int
    who: str
    op: str
    state: str
    reason: str | None
    fence: int
    attempt: int
    failures: int
    lost: int
    interrupted: int
    finished_at: int
    result: str | None = None

    @property
    def counters(self) -> tuple[int, int, int]:
        """What was spent of the budgets: failures, lost, interrupted."""
        return self.failures, self.lost, self.interrupted


class Effect(NamedTuple):
    """A row that a handler wrote on a connection of its own."""

    attempt: int
    fence: int
    mark: str
    worker: str


class Told(NamedTuple):
    """What a worker said about a job."""

    worker: str
    at: int
    what: str
    job_id: int
    attempt: int


class Cancelled(NamedTuple):
    """An answer to an operator."""

    job_id: int
    at: int
    answer: str


class Drain(NamedTuple):
    """One orderly stop of a worker; `disturbed` when its connections or its database were hurt meanwhile."""

    worker: str
    asked_at: int
    exited_at: int
    code: int
    disturbed: bool


@dataclass(slots=True)
class Job:
    """All that is known of one job, in the order of the shadow log."""

    id: int
    changes: list[Change] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    endings: list[Ending] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)
    _steps: list[Step] | None = None

    @property
    def mark(self) -> str | None:
        """The name that its producer gave it."""
        first = self.changes[0].new if self.changes else None
        return first.mark if first else None

    @property
    def ending(self) -> Ending | None:
        """How it ended."""
        return self.endings[0] if self.endings else None

    @property
    def steps(self) -> list[Step]:
        """Its changes as transitions."""
        if self._steps is None:
            self._steps = list(_steps(self))
        return self._steps


class Step(NamedTuple):
    """A change with the transition that it must have been; `name` is None when it can have been none."""

    name: str | None
    change: Change
    attempt: Attempt | None
    ending: Ending | None

    @property
    def before(self) -> Row | None:
        """The row before."""
        return self.change.old

    @property
    def after(self) -> Row | Ending | None:
        """The row after, in whichever table it is."""
        return self.change.new or self.ending


@dataclass(slots=True, kw_only=True)
class Log:
    """Everything that a run left behind. Durations are in seconds, moments in microseconds."""

    jobs: dict[int, Job]
    expected: dict[str, str] = field(default_factory=dict)
    """By mark: `yes`, `no` or `maybe`, as the producer and its business tables have it."""
    not_before: dict[str, int] = field(default_factory=dict)
    cancels: list[Cancelled] = field(default_factory=list)
    drains: list[Drain] = field(default_factory=list)
    accepted_repeats: list[tuple[int, str]] = field(default_factory=list)
    repeats: int = 0
    well: list[tuple[int, int]] = field(default_factory=list)
    """From when to when some worker worked unhurt."""
    outages: list[tuple[int, int]] = field(default_factory=list)
    lease: float = 2.0
    drain: float = 2.5
    slack: float = 5.0


class Violation(NamedTuple):
    """A broken promise; `job_id` is 0 when it is not about one job."""

    invariant: str
    job_id: int
    text: str


@dataclass(slots=True)
class Tally:
    """Counts what one invariant looked at, and keeps what it found."""

    invariant: str
    checked: int = 0
    violations: list[Violation] = field(default_factory=list)

    def check(self, ok: bool, job_id: int, text: str) -> None:  # noqa: FBT001 - the one thing that it is told
        """One more thing looked at; `text` says what is wrong when it is."""
        self.checked += 1
        if not ok:
            self.violations.append(Violation(self.invariant, job_id, text))


Invariant = Callable[[Log, Tally], None]
INVARIANTS: dict[str, tuple[str, Invariant]] = {}


def check(log: Log) -> dict[str, Tally]:
    """All invariants over one log, by number."""
    tallies = {number: Tally(number) for number in INVARIANTS}
    for number, (_, invariant) in INVARIANTS.items():
        invariant(log, tallies[number])
    return tallies


def violations(tallies: dict[str, Tally]) -> list[Violation]:
    """What all of them found."""
    return [violation for tally in tallies.values() for violation in tally.violations]


def _invariant(number: str, title: str) -> Callable[[Invariant], Invariant]:
    def register(function: Invariant) -> Invariant:
        INVARIANTS[number] = (title, function)
        return function

    return register


# ── from changes to transitions ──

_BY_OUTCOME = {
    "succeeded": "succeed",
    "failed": "fail",
    "timeout": "fail",
    "cancelled": "fail",
    "snoozed": "snooze",
    "released": "release",
    "interrupted": "release",
    "lost": "reap",
}
_BY_REASON = {"cancelled": "cancel", "expired": "expire"}


def _steps(job: Job) -> Iterator[Step]:
    closed = {(a.token, a.attempt): a for a in job.attempts if a.op == "I"}
    for change in job.changes:
        old, new = change.old, change.new
        attempt = None
        if old is not None and old.token is not None and (new is None or new.token != old.token):
            attempt = closed.get((old.token, old.attempt))
        ending = job.ending if new is None else None
        yield Step(_name(old, new, attempt, ending), change, attempt, ending)


def _name(  # noqa: PLR0911 - a table
    old: Row | None, new: Row | None, attempt: Attempt | None, ending: Ending | None
) -> str | None:
    if old is None:
        return "enqueue"
    by_outcome = _BY_OUTCOME.get(attempt.outcome) if attempt else None
    if new is None:
        if ending is None:
            return None
        if old.state in WAITING:
            return _BY_REASON.get(ending.reason or "")
        return "succeed" if ending.state == State.SUCCEEDED and by_outcome == "succeed" else by_outcome
    if old.state == new.state == State.CLAIMED:
        return _while_claimed(old, new)
    match (old.state, new.state):
        case ("runnable", "claimed"):
            return "claim"
        case ("scheduled", "runnable"):
            return "promote" if old.available_at == new.available_at else "unpark"
        case ("runnable", "scheduled"):
            return "park" if new.reason else None
    return by_outcome if old.state == State.CLAIMED else None


def _while_claimed(old: Row, new: Row) -> str | None:
    if old._replace(cancel=new.cancel) == new and new.cancel:
        return "request_cancel"
    return "renew" if old._replace(lease_expires_at=new.lease_expires_at) == new else None


def story(job: Job) -> str:
    """The whole history of a job as lines of text."""
    lines = [
        (s.change.seq, s.change.at, f"{s.name or '???':15}by {s.change.who}: {_difference(s.change)}")
        for s in job.steps
    ]
    for a in job.attempts:
        text = f"{a.attempt} {a.outcome} {a.reason or ''} token {a.token[:8]} fence {a.fence} of {a.worker}"
        lines.append((a.seq, a.at, f"attempt row {a.op}  by {a.who}: {text}"))
    for e in job.endings:
        text = f"{e.state} {e.reason or ''} attempt {e.attempt} counters {e.counters}"
        lines.append((e.seq, e.at, f"history row {e.op}  by {e.who}: {text}"))
    start = min((at for _, at, _ in lines), default=0)
    told = [f"  {(t.at - start) / SECOND:9.3f}  told           by {t.worker}: {t.what} {t.attempt}" for t in job.told]
    effects = [f"             effect         by {e.worker}: attempt {e.attempt} fence {e.fence}" for e in job.effects]
    ordered = [f"  {(at - start) / SECOND:9.3f}  {text}" for _, at, text in sorted(lines)]
    return "\n".join([f"job {job.id} ({job.mark}), seconds from {start / SECOND:.3f}", *ordered, *told, *effects])


def _difference(change: Change) -> str:
    old, new = change.old, change.new
    if old is None or new is None:
        return " ".join(f"{name}={value}" for name, value in (new or old or Row("?"))._asdict().items() if value)
    pairs = ((name, was, getattr(new, name)) for name, was in old._asdict().items())
    return " ".join(f"{name}:{was}→{now}" for name, was, now in pairs if was != now) or "nothing changed"


# ── the invariants ──


@_invariant("1", "committed enqueues end, rolled-back ones never were")
def _no_loss_no_ghost(log: Log, tally: Tally) -> None:
    by_mark: dict[str, list[Job]] = defaultdict(list)
    for job in log.jobs.values():
        first = job.changes[0].new if job.changes else None
        if first is None or (first.mark is None and first.origin is None):
            tally.check(ok=False, job_id=job.id, text="it was never enqueued")
            continue
        if first.origin is not None:
            tally.check(first.origin in log.jobs, job.id, f"a copy of job {first.origin}, which never was")
        else:
            by_mark[first.mark or ""].append(job)
        tally.check(len(job.endings) > 0, job.id, f"lost: it has not ended ({job.changes[-1].new})")
    for mark, wanted in log.expected.items():
        jobs = by_mark.pop(mark, [])
        id = jobs[0].id if jobs else 0
        if wanted == "yes":
            tally.check(bool(jobs), 0, f"lost: {mark} was committed and never came to be")
        elif wanted == "no":
            tally.check(not jobs, id, f"ghost: {mark} was rolled back")
    for mark, jobs in by_mark.items():
        tally.check(ok=False, job_id=jobs[0].id, text=f"ghost: nobody enqueued {mark}")


@_invariant("2", "one accepted end; its token is the row's, its worker the holder")
def _one_accepted(log: Log, tally: Tally) -> None:
    for job in log.jobs.values():
        for step in job.steps:
            old, attempt = step.before, step.attempt
            if old is None or attempt is None:
                continue
            tally.check(
                (attempt.token, attempt.fence, attempt.worker) == (old.token, old.fence, old.worker),
                job.id,
                f"attempt {attempt.attempt} was ended under another token, fence or worker than the row's",
            )
        ends = [told for told in job.told if told.what in {"succeeded", "failed", "cancelled"}]
        tally.check(len({(t.worker, t.attempt) for t in ends}) <= 1, job.id, "two workers were told that it ended")
        for told in job.told:
            _told_truth(job, told, tally)


_TOLD = {
    "succeeded": ("succeed",),
    "failed": ("fail", "release", "snooze"),
    "cancelled": ("fail", "snooze", "release"),
    "retrying": ("fail",),
    "snoozed": ("snooze",),
    "released": ("release",),
}


def _told_truth(job: Job, told: Told, tally: Tally) -> None:
    if told.what not in _TOLD:
        return
    ended = [a for a in job.attempts if a.attempt == told.attempt and a.worker == told.worker]
    tally.check(
        any(_BY_OUTCOME.get(a.outcome) in _TOLD[told.what] for a in ended),
        job.id,
        f"{told.worker} was told {told.what} for attempt {told.attempt}, which ended otherwise",
    )


@_invariant("3", "terminal states absorb")
def _absorbing(log: Log, tally: Tally) -> None:
    for job in log.jobs.values():
        tally.check(len(job.endings) <= 1, job.id, f"it ended {len(job.endings)} times")
        for ending in job.endings:
            tally.check(ending.op == "I", job.id, f"its history was changed ({ending.op})")
            tally.check(ending.state in TERMINAL, job.id, f"it ended as {ending.state}")
        gone = [i for i, change in enumerate(job.changes) if change.new is None]
        if job.endings:
            tally.check(bool(gone), job.id, "it ended, and is still alive")
        if gone:
            tally.check(gone[0] == len(job.changes) - 1, job.id, "it was changed after its end")


@_invariant("4", "attempts dense 1..n, one row each, never updated")
def _dense(log: Log, tally: Tally) -> None:
    for job in log.jobs.values():
        for row in job.attempts:
            tally.check(row.op == "I", job.id, f"the record of attempt {row.attempt} was changed ({row.op})")
        numbers = sorted(row.attempt for row in job.attempts if row.op == "I")
        tally.check(numbers == list(range(1, len(numbers) + 1)), job.id, f"its attempts are numbered {numbers}")
        if job.ending is not None:
            tally.check(
                job.ending.attempt == len(numbers),
                job.id,
                f"{job.ending.attempt} attempts by the history, {len(numbers)} records",
            )


@_invariant("5", "the fence grows at every claim")
def _fence_grows(log: Log, tally: Tally) -> None:
    for job in log.jobs.values():
        last = 0
        for step in job.steps:
            if step.name == "claim" and step.change.new is not None:
                fence = step.change.new.fence
                tally.check(fence > last, job.id, f"claimed with fence {fence} after {last}")
                last = fence


@_invariant("6", "claims of a job never overlap")
def _no_overlap(log: Log, tally: Tally) -> None:
    for job in log.jobs.values():
        holder: str | None = None
        for change in job.changes:
            token = change.new.token if change.new else None
            if token is not None and token != holder:
                tally.check(holder is None, job.id, f"claimed as {token[:8]} while {(holder or '')[:8]} held it")
            holder = token
        rows = sorted((a for a in job.attempts if a.op == "I"), key=lambda a: (a.started_at, a.ended_at))
        for earlier, later in pairwise(rows):
            tally.check(
                later.started_at >= earlier.ended_at - CLOCK_STEP,
                job.id,
                f"attempt {later.attempt} began before attempt {earlier.attempt} had ended",
            )


@_invariant("9", "no start before available_at")
def _not_early(log: Log, tally: Tally) -> None:
    for job in log.jobs.values():
        wanted = log.not_before.get(job.mark or "", 0) if job.changes and _origin(job) is None else 0
        for step in job.steps:
            row = step.change.new
            if step.name != "claim" or row is None or row.claimed_at is None:
                continue
            earliest = max(row.available_at, wanted)
            early = (earliest - row.claimed_at) / SECOND
            tally.check(row.claimed_at >= earliest, job.id, f"claimed {early:.6f} s before it was available")


def _origin(job: Job) -> int | None:
    first = job.changes[0].new
    return first.origin if first else None


@_invariant("10", "budgets: every transition counts what it should, none is overdrawn")
def _budgets(log: Log, tally: Tally) -> None:
    for job in log.jobs.values():
        for step in job.steps:
            if step.before is not None and step.after is not None and step.name is not None:
                wanted = _counters_after(step)
                tally.check(
                    step.after.counters in wanted,
                    job.id,
                    f"{step.name} made the counters {step.before.counters} → {step.after.counters}, not {wanted}",
                )
        for change in job.changes:
            row = change.new
            if row is not None:
                within = row.failures < row.max_failures and row.lost < row.max_lost
                tally.check(
                    within and row.interrupted < row.max_interrupted, job.id, f"alive with a budget spent: {row}"
                )
        _reason_fits(job, tally)


def _counters_after(step: Step) -> list[tuple[int, int, int]]:
    assert step.before is not None  # noqa: S101 - for the type checker
    failures, lost, interrupted = step.before.counters
    ended = step.change.new is None
    match step.name:
        case "fail":
            return [(failures + 1, lost if ended else 0, interrupted)]
        case "snooze":
            return [(failures, lost if ended else 0, interrupted)]
        case "reap":
            return [(failures, lost + 1, interrupted)]
        case "release":
            started = step.attempt is not None and step.attempt.outcome == "interrupted"
            return [(failures, lost, interrupted + started)]
    return [(failures, lost, interrupted)]


def _reason_fits(job: Job, tally: Tally) -> None:
    ending, last = job.ending, job.changes[-1].old if job.changes else None
    if ending is None or last is None:
        return
    spent = {
        "exhausted": ending.failures >= last.max_failures,
        "lost": ending.lost >= last.max_lost,
        "interrupted": ending.interrupted >= last.max_interrupted,
    }
    if ending.reason in spent:
        tally.check(spent[ending.reason], job.id, f"failed ({ending.reason}) with {ending.counters} of {last}")


@_invariant("12", "cancel wins over every other end but success")
def _cancel_wins(log: Log, tally: Tally) -> None:
    for job in log.jobs.values():
        flagged = False
        for step in job.steps:
            old = step.before
            if old is not None and old.cancel and step.name not in {"renew", "request_cancel"}:
                tally.check(_was_cancelled(step), job.id, f"{step.name} took a job that was to be cancelled elsewhere")
            flagged = flagged or bool(step.change.new and step.change.new.cancel)
            tally.check(not (flagged and step.name == "claim"), job.id, "claimed after it was to be cancelled")
    for cancel in log.cancels:
        ending = log.jobs[cancel.job_id].ending if cancel.job_id in log.jobs else None
        if ending is None:
            continue
        kept = ending.reason == "cancelled" or (cancel.answer == State.CLAIMED and ending.state == State.SUCCEEDED)
        tally.check(
            kept, cancel.job_id, f"the operator was told {cancel.answer}; it ended {ending.state} ({ending.reason})"
        )


def _was_cancelled(step: Step) -> bool:
    ending = step.ending
    return ending is not None and (ending.state == State.SUCCEEDED or ending.reason == "cancelled")


@_invariant("13", "claims released before they started cost nothing")
def _release_is_free(log: Log, tally: Tally) -> None:
    for job in log.jobs.values():
        for step in job.steps:
            if step.attempt is not None and step.attempt.outcome == "released" and step.before and step.after:
                tally.check(
                    step.after.counters == step.before.counters,
                    job.id,
                    f"a claim that never started changed the counters {step.before.counters} → {step.after.counters}",
                )


@_invariant("15", "no job stays claimed longer than lease + reaper's period + slack")
def _bounded_recovery(log: Log, tally: Tally) -> None:
    # A worker that was well for one lease looks every quarter of it, a fifth later at most.
    bound = round((log.lease + 0.3 * log.lease + log.slack) * SECOND)
    watches = [watch for watch in _between(log.well, log.outages) if watch[1] - watch[0] > bound]
    for job in log.jobs.values():
        for step in job.steps:
            old, new = step.before, step.change.new
            if new is not None and new.lease_expires_at is not None and (old is None or new != old):
                longest = step.change.at + round(log.lease * SECOND) + CLOCK_STEP
                tally.check(new.lease_expires_at <= longest, job.id, f"{step.name} gave a lease longer than the lease")
            if step.name == "reap" and old is not None and old.lease_expires_at is not None:
                seen = [min(end, step.change.at) - max(start, old.lease_expires_at) for start, end in watches]
                late = (max(seen, default=0) - bound) / SECOND
                tally.check(late <= 0, job.id, f"a worker that was well let it lie {late:.3f} s longer than promised")


def _between(watches: Iterable[tuple[int, int]], outages: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """What is left of times when others stood still, perhaps with a lock in hand, or the database was away."""
    left = list(watches)
    for gone, back in outages:
        left = [
            part
            for start, end in left
            for part in ((start, min(end, gone)), (max(start, back), end))
            if part[0] < part[1] and (part[1] <= gone or part[0] >= back)
        ]
    return left


@_invariant("17", "a drain ends in time and leaves no claim behind")
def _drains(log: Log, tally: Tally) -> None:
    left = _left_behind(log)
    for drain in log.drains:
        seconds = (drain.exited_at - drain.asked_at) / SECOND
        tally.check(drain.code in {0, 7}, 0, f"{drain.worker} ended with code {drain.code}")
        tally.check(seconds <= log.drain + log.slack, 0, f"{drain.worker} took {seconds:.3f} s to drain")
        if not drain.disturbed:
            behind = [id for id, lease_over in left[drain.worker] if lease_over >= drain.exited_at]
            tally.check(
                not behind,
                behind[0] if behind else 0,
                f"{drain.worker} drained in {seconds:.3f} s, code {drain.code}, and left jobs {behind} claimed",
            )


def _left_behind(log: Log) -> dict[str, list[tuple[int, int]]]:
    """By worker: jobs that were taken back from it, and when their leases were over."""
    left: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for job in log.jobs.values():
        for step in job.steps:
            row = step.before
            if step.name == "reap" and row is not None and row.worker is not None:
                left[row.worker].append((job.id, row.lease_expires_at or 0))
    return left


@_invariant("18", "a repeated enqueue or acknowledgement changes nothing")
def _idempotent(log: Log, tally: Tally) -> None:
    tally.checked += log.repeats
    for id, what in log.accepted_repeats:
        tally.violations.append(Violation("18", id, f"accepted again: {what}"))
    marks = Counter(job.mark for job in log.jobs.values() if job.changes and _origin(job) is None)
    for job in log.jobs.values():
        tally.check(marks[job.mark] <= 1, job.id, f"{job.mark} was enqueued {marks[job.mark]} times")
        tokens = Counter(attempt.token for attempt in job.attempts if attempt.op == "I")
        for token, n in tokens.items():
            tally.check(n == 1, job.id, f"claim {token[:8]} was ended {n} times")


@_invariant("T", "every change is an arrow of the table, its guards held")
def _arrows(log: Log, tally: Tally) -> None:
    for job in log.jobs.values():
        previous: Row | None = None
        for step in job.steps:
            change = step.change
            tally.check(change.old == previous, job.id, f"change {change.seq} does not begin where the last one ended")
            previous = change.new
            arrow = TABLE.get(step.name or "")
            if arrow is None:
                tally.check(ok=False, job_id=job.id, text=f"no arrow does this: {_difference(change)}")
                continue
            source = change.old.state if change.old else None
            target = step.after.state if step.after else None
            fits = (source in arrow.source if source else not arrow.source) and target in arrow.target
            tally.check(fits, job.id, f"{arrow.name} does not lead from {source} to {target}")
            tally.check(arrow.closes == (step.attempt is not None), job.id, f"{arrow.name} without its attempt row")
            broken = [guard for guard in arrow.guards if not _held(guard, step)]
            tally.check(not broken, job.id, f"{arrow.name} by {change.who} although {broken} forbids it")
            tally.check(_frame(step), job.id, f"{arrow.name} touched attempt or fence: {_difference(change)}")


def _held(guard: Guard, step: Step) -> bool:
    row, at, who = step.before, step.change.at + CLOCK_STEP, step.change.who
    if row is None:
        return True
    match guard:
        case Guard.TOKEN:
            return who == row.worker
        case Guard.DUE:
            return row.available_at <= at
        case Guard.LEASE_OVER:
            return row.lease_expires_at is not None and row.lease_expires_at < at
        case Guard.EXPIRED:
            return row.expires_at is not None and row.expires_at <= at
    return True


def _frame(step: Step) -> bool:
    """Attempt and fence change at a claim only."""
    old, new = step.before, step.after
    if old is None or new is None:
        return True
    if step.name == "claim":
        return new.attempt == old.attempt + 1 and new.fence > old.fence
    return (new.attempt, new.fence) == (old.attempt, old.fence)


@_invariant("U", "one live job for each unique key")
def _unique(log: Log, tally: Tally) -> None:
    events: list[tuple[int, tuple[str, str], int, bool]] = []
    for job in log.jobs.values():
        for change in job.changes:
            row = change.new if change.old is None else change.old if change.new is None else None
            if row is not None and row.unique_key is not None:
                events.append((change.seq, (row.queue, row.unique_key), job.id, change.old is None))
    alive: dict[tuple[str, str], int] = {}
    for _, key, id, born in sorted(events):
        if born:
            tally.check(key not in alive, id, f"{key} is alive already as job {alive.get(key)}")
            alive[key] = id
        else:
            alive.pop(key, None)


@_invariant("E", "a success has its effect and its result; an effect has its claim")
def _effects(log: Log, tally: Tally) -> None:
    for job in log.jobs.values():
        claims = {(s.change.new.attempt, s.change.new.fence) for s in job.steps if s.name == "claim" and s.change.new}
        for effect in job.effects:
            tally.check((effect.attempt, effect.fence) in claims, job.id, f"an effect of no claim: {effect}")
        task = (job.mark or "").partition(":")[0]
        if job.ending is not None and job.ending.state == State.SUCCEEDED:
            if task == "effect":
                tally.check(bool(job.effects), job.id, "succeeded without its effect")
            if task == "result":
                tally.check(job.ending.result == job.mark, job.id, f"its result is {job.ending.result!r}")
