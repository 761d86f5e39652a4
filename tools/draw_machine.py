"""Writes docs/reference/states.md from the machine's table; ``--check`` fails when it is stale."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from lien.machine import TABLE, TERMINAL, AttemptOutcome, Guard, Reason, State, Transition, mermaid
from lien.policy import DEFAULT_MAX_FAILURES, DEFAULT_MAX_INTERRUPTED, DEFAULT_MAX_LOST, Backoff

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "states.md"

STATES = {
    State.SCHEDULED: "It waits. `available_at` says until when.",
    State.RUNNABLE: "It may run now. The next worker with a free slot takes it.",
    State.CLAIMED: "A worker has it, until the attempt ends or, after the lease, is taken back.",
    State.SUCCEEDED: "Its handler returned. Nothing changes it any more.",
    State.FAILED: "It will not run again. `reason` says why.",
}
GUARDS = {
    Guard.TOKEN: "the claim token is the one given out with the claim",
    Guard.DUE: "`available_at` has come",
    Guard.LEASE_OVER: "`lease_expires_at` is over",
    Guard.EXPIRED: "`expires_at` has come",
    Guard.TASK: "whether the worker knows the task",
}
REASONS = {
    Reason.EXHAUSTED: "It failed until `failures` reached `max_failures`.",
    Reason.PERMANENT: "The handler raised `Discard`, or no later try could have helped.",
    Reason.LOST: "Its workers fell silent until `lost` reached `max_lost`.",
    Reason.INTERRUPTED: "Its workers were stopped until `interrupted` reached `max_interrupted`.",
    Reason.CANCELLED: "An operator cancelled it, or the handler raised `Cancel`.",
    Reason.EXPIRED: "`expires_at` came before any worker took it.",
    Reason.UNKNOWN_TASK: "Parked, not failed: the worker that met it does not know its task. "
    "It stays `scheduled` and is looked at again.",
}
OUTCOMES = {
    AttemptOutcome.SUCCEEDED: "The handler returned.",
    AttemptOutcome.FAILED: "The handler raised.",
    AttemptOutcome.TIMEOUT: "The handler ran longer than `timeout`.",
    AttemptOutcome.SNOOZED: "The handler asked for a later try.",
    AttemptOutcome.RELEASED: "The worker gave the job back before it started it.",
    AttemptOutcome.INTERRUPTED: "The worker was stopped while the handler ran.",
    AttemptOutcome.LOST: "The worker fell silent and the lease ran out.",
    AttemptOutcome.CANCELLED: "An operator cancelled the job, or the handler raised `Cancel`.",
}
_BACKOFF = Backoff()
BUDGETS = (
    ("failures", DEFAULT_MAX_FAILURES, "The handler raised or ran too long.", Reason.EXHAUSTED),
    (
        "lost",
        DEFAULT_MAX_LOST,
        "The worker fell silent. A normal end sets it back to 0.",
        Reason.LOST,
    ),
    ("interrupted", DEFAULT_MAX_INTERRUPTED, "The worker was stopped.", Reason.INTERRUPTED),
)


def page() -> str:
    """The whole page."""
    return f"""# States of a job

<!-- Written by tools/draw_machine.py from src/lien/machine.py. Change the table there. -->

A job is always in one of five states. The state is stored with the job, so you can read it with
plain SQL from the view `lien_jobs`, even when no worker runs.

{table(("State", "What it means"), ((f"`{s}`", STATES[s]) for s in State))}

{_words(s for s in State if s in TERMINAL)} are final: no statement moves such a job. To run
a failed job again, enqueue a copy. The copy names the old job as its `origin`.

```mermaid
{mermaid().rstrip()}
```

## Transitions

Each move is a write that tests the state first. When the test fails, nothing changes. Moves that
test the claim token can only be made by the worker that holds the claim. A worker that lost its
claim is told so, and its late result changes nothing.

{table(("Transition", "From", "To", "Also tests", "What happens"), map(_arrow, TABLE.values()))}

These moves end an attempt and write its record in the same transaction:
{_words(arrow.name for arrow in TABLE.values() if arrow.closes)}.

## Reasons

`reason` is set on failed jobs and on parked ones.

{table(("Reason", "What it means"), ((f"`{r}`", REASONS[r]) for r in Reason))}

## Attempts

An attempt starts when a worker claims the job. It ends once, and its record is never changed.

{table(("Outcome", "What it means"), ((f"`{o}`", OUTCOMES[o]) for o in AttemptOutcome))}

## Budgets

`attempt` only counts: it grows by one with every claim and limits nothing. Three other counters
limit how often a job may go wrong. A budget is spent when its counter reaches its limit. The job
then ends as `failed`.

{table(("Counter", "Limit", "Default", "Grows when", "Reason at the end"), map(_budget, BUDGETS))}

After a failure the job waits `base * 2 ** (failures - 1)` seconds, at most `cap`, times a random
number from 0.5 to 1. `base` is {_BACKOFF.base:g} seconds and `cap` is {_BACKOFF.cap:g} seconds
unless you say otherwise. A snooze spends no budget, and neither does a job that a worker gives back
before it has started it.
"""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _arrow(t: Transition) -> tuple[str, ...]:
    guards = "; ".join(GUARDS[g] for g in sorted(t.guards))
    return (f"`{t.name}`", _states(t.source), _states(t.target), guards or "-", t.doc)


def _budget(row: tuple[str, int, str, Reason]) -> tuple[str, ...]:
    counter, default, grows, reason = row
    return (f"`{counter}`", f"`max_{counter}`", str(default), grows, f"`{reason}`")


def _states(states: Iterable[State]) -> str:
    return ", ".join(f"`{s}`" for s in State if s in states) or "-"


def _words(words: Iterable[str]) -> str:
    *first, last = (f"`{w}`" for w in words)
    return f"{', '.join(first)} and {last}"


def main() -> int:
    """Write the page, or with ``--check`` say whether it is stale; 1 when it is."""
    text = page()
    if "--check" not in sys.argv[1:]:
        PAGE.parent.mkdir(parents=True, exist_ok=True)
        PAGE.write_text(text, "utf-8")
        return 0
    if PAGE.exists() and PAGE.read_text("utf-8") == text:
        return 0
    print(f"{PAGE} is stale: run python tools/draw_machine.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
