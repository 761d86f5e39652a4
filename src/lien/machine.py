"""The state machine of a job: the one place where its rules live.

Rule 1: every rule about states and transitions is a row of TABLE. The SQL of every engine, the documentation
page and the model in the tests are checked against it; none of them adds a rule of its own.
Rule 2: this module does no I/O and imports nothing of ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """Where a job is. Stored as this text in every engine."""

    SCHEDULED = "scheduled"
    RUNNABLE = "runnable"
    CLAIMED = "claimed"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


class Reason(StrEnum):
    """Why a job is failed, or why a scheduled one is parked."""

    EXHAUSTED = "exhausted"
    PERMANENT = "permanent"
    LOST = "lost"
    INTERRUPTED = "interrupted"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    UNKNOWN_TASK = "unknown_task"


class AttemptOutcome(StrEnum):
    """How one attempt ended, as its write-once record says it."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMEOUT = "timeout"
    SNOOZED = "snoozed"
    RELEASED = "released"
    INTERRUPTED = "interrupted"
    LOST = "lost"
    CANCELLED = "cancelled"


class Guard(StrEnum):
    """What a statement must test, besides the state, before it may move a job."""

    TOKEN = "claim_token"  # noqa: S105 - a column name
    DUE = "available_at"
    LEASE_OVER = "lease_expires_at"
    EXPIRED = "expires_at"
    TASK = "task"


LIVE = frozenset({State.SCHEDULED, State.RUNNABLE, State.CLAIMED})
WAITING = frozenset({State.SCHEDULED, State.RUNNABLE})
TERMINAL = frozenset({State.SUCCEEDED, State.FAILED})

FAILURE_REASONS = frozenset(Reason) - {Reason.UNKNOWN_TASK}


@dataclass(frozen=True, slots=True)
class Transition:
    """One arrow: which jobs it may touch, where they land, what it must test and what it does besides.

    ``closes`` says that the arrow ends an attempt, so the same statement writes the attempt's record.
    """

    name: str
    source: frozenset[State]
    target: frozenset[State]
    guards: frozenset[Guard]
    closes: bool
    doc: str

    @property
    def token(self) -> bool:
        """Whether only the holder of the claim may make this move."""
        return Guard.TOKEN in self.guards


_NONE: frozenset[State] = frozenset()


def _arrow(
    name: str,
    source: frozenset[State] | State,
    target: frozenset[State] | State,
    doc: str,
    *guards: Guard,
    closes: bool = False,
) -> Transition:
    return Transition(
        name,
        frozenset({source}) if isinstance(source, State) else source,
        frozenset({target}) if isinstance(target, State) else target,
        frozenset(guards),
        closes,
        doc,
    )


_S, _R, _C, _OK, _F = State

TABLE: dict[str, Transition] = {
    arrow.name: arrow
    for arrow in (
        _arrow(
            "enqueue",
            _NONE,
            WAITING,
            "Written in the caller's transaction; runnable when `available_at` has come by the database clock.",
        ),
        _arrow("promote", _S, _R, "`available_at` has come; any worker, in bounded batches.", Guard.DUE),
        _arrow(
            "park",
            _R,
            _S,
            "The worker that met it does not know its task: reason `unknown_task`, no attempt, looked at again in "
            "15 s to 5 min.",
            Guard.TASK,
        ),
        _arrow("unpark", _S, _R, "A worker that knows the task has started.", Guard.TASK),
        _arrow(
            "claim",
            _R,
            _C,
            "A worker takes it: attempt + 1, a new claim token, a larger fence, a lease.",
            Guard.TASK,
        ),
        _arrow("renew", _C, _C, "The lease is extended; answers with cancel requests.", Guard.TOKEN),
        _arrow("succeed", _C, _OK, "The handler returned.", Guard.TOKEN, closes=True),
        _arrow(
            "fail",
            _C,
            frozenset({_S, _F}),
            "The handler raised: failures + 1, then a later try, or the end when the budget is spent or the error "
            "is permanent.",
            Guard.TOKEN,
            closes=True,
        ),
        _arrow(
            "snooze",
            _C,
            frozenset({_S, _F}),
            "The handler asked for a later try: no budget is spent.",
            Guard.TOKEN,
            closes=True,
        ),
        _arrow(
            "release",
            _C,
            frozenset({_R, _F}),
            "Given back by a draining worker: interrupted + 1 only if it had started.",
            Guard.TOKEN,
            closes=True,
        ),
        _arrow(
            "reap",
            _C,
            frozenset({_S, _F}),
            "Its worker fell silent and the lease is over: lost + 1.",
            Guard.LEASE_OVER,
            closes=True,
        ),
        _arrow(
            "expire",
            WAITING,
            _F,
            "`expires_at` has come while it waited, for its first try or another one.",
            Guard.EXPIRED,
        ),
        _arrow("cancel", WAITING, _F, "An operator said no before it ran."),
        _arrow(
            "request_cancel",
            _C,
            _C,
            "An operator said no while it runs: a flag that the worker polls. Success still wins; every other end "
            "is failed (cancelled).",
        ),
    )
}


def reachable_from(state: State) -> frozenset[State]:
    """States that one transition can lead to."""
    return frozenset(t for arrow in TABLE.values() if state in arrow.source for t in arrow.target)


def mermaid() -> str:
    """The table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2"]
    for arrow in TABLE.values():
        for target in sorted(arrow.target):
            lines += [f"    {source} --> {target}: {arrow.name}" for source in sorted(arrow.source)]
            if not arrow.source:
                lines.append(f"    [*] --> {target}: {arrow.name}")
    lines += [f"    {state} --> [*]" for state in sorted(TERMINAL)]
    return "\n".join(lines) + "\n"
