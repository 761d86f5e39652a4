"""From what became of claims to events."""

from __future__ import annotations

from collections.abc import Sequence

from lien import clock
from lien.machine import State
from lien.model import Claim, Ended
from lien.worker.events import Event, Stream, What
from lien.worker.held import Running


def tell_ended(stream: Stream, ended: Sequence[Ended], gone: Sequence[Running]) -> None:
    """One event for each claim that a written acknowledgement ended."""
    running_by_id = {running.claim.id: running for running in gone}
    now = clock.monotonic()
    for end in ended:
        running = running_by_id.get(end.id)
        if running is None:
            continue
        claim = running.claim
        took = None if running.began_at is None else now - running.began_at
        match end.state:
            case State.SUCCEEDED:
                event = about(What.SUCCEEDED, claim, end.id, claim.attempt, seconds=took)
            case State.FAILED:
                what = What.CANCELLED if end.reason == "cancelled" else What.FAILED
                event = about(what, claim, end.id, claim.attempt, seconds=took, error=running.note)
            case State.RUNNABLE:
                event = about(What.RELEASED, claim, end.id, claim.attempt, error=running.note)
            case _:
                what = What.SNOOZED if running.note is None else What.RETRYING
                event = about(
                    what,
                    claim,
                    end.id,
                    claim.attempt,
                    seconds=took,
                    error=running.note,
                    again_in=running.again_in,
                )
        stream.emit(event)


def about(
    what: What,
    claim: Claim | None,
    job_id: int,
    attempt: int,
    *,
    seconds: float | None = None,
    error: str | None = None,
    again_in: float | None = None,
) -> Event:
    """An event about a claim, if it is known, or about a job by its number."""
    return Event(
        what=what,
        job_id=job_id,
        attempt=attempt,
        task=None if claim is None else claim.task,
        queue=None if claim is None else claim.queue,
        max_failures=None if claim is None else claim.max_failures,
        seconds=seconds,
        error=error,
        again_in=again_in,
    )
