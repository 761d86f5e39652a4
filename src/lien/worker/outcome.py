"""From the way a handler ended to the acknowledgement to write. Computes only."""

from __future__ import annotations

import inspect
import json
import math
from typing import Any

from lien import outcomes
from lien.codec import Codec, describe_error
from lien.errors import PayloadError
from lien.machine import AttemptOutcome, Reason
from lien.model import Ack, Claim
from lien.policy import MAX_DELAY, Backoff, decide
from lien.worker.events import logger
from lien.worker.held import Cause, Running


def returned(running: Running, value: Any, codec: Codec) -> Ack | None:
    """The handler returned."""
    claim = running.claim
    if running.acknowledged:
        return None
    if running.cause is Cause.TIMEOUT:
        # A thread cannot be killed: it kept its slot until it ended, and only now is that written.
        return raised(running, TimeoutError("the handler returned, but late"))
    if value is None:
        return Ack(claim.id, claim.attempt, claim.token, "succeed", AttemptOutcome.SUCCEEDED)
    if isinstance(value, outcomes.Outcome):
        return raised(running, value)
    if inspect.isawaitable(value) or inspect.isgenerator(value) or inspect.isasyncgen(value):
        if inspect.iscoroutine(value) or inspect.isgenerator(value):
            value.close()
        body = TypeError(
            f"the handler returned a {type(value).__name__}, whose body never ran: await it, or return a value"
        )
        return raised(running, body)
    try:
        result = codec.encode(value, "result")
    except Exception as error:  # noqa: BLE001 - an encoder of the user's may raise anything
        # The work is done; failing now would do it again. What cannot be kept is said in its place.
        why, _ = describe_error(error)
        result = json.dumps({"lien": "result not stored", "why": why[:500]})
    return Ack(claim.id, claim.attempt, claim.token, "succeed", AttemptOutcome.SUCCEEDED, result=result)


def raised(running: Running, error: BaseException) -> Ack | None:  # noqa: C901, PLR0911 - a table of outcomes
    """The handler raised; None when there is nothing to say because the claim is lost."""
    claim = running.claim
    if running.acknowledged:
        logger.warning("job %s raised after its transaction had committed: it has succeeded", claim.id, exc_info=error)
        return None
    match running.cause:
        case Cause.LOST:
            return None
        case Cause.SHUTDOWN:
            return release(claim, started=True)
        case Cause.CANCELLED:
            return _failed(claim, error, outcome=AttemptOutcome.CANCELLED, reason=Reason.CANCELLED)
        case Cause.TIMEOUT:
            late = TimeoutError(f"the attempt took longer than its timeout of {claim.timeout:g} s")
            late.__cause__ = error
            return _failed(claim, late, outcome=AttemptOutcome.TIMEOUT)
    match error:
        case outcomes.Snooze():
            return Ack(
                claim.id,
                claim.attempt,
                claim.token,
                "snooze",
                AttemptOutcome.SNOOZED,
                delay=error.after,
                until=error.until,
            )
        case outcomes.Retry():
            return _failed(claim, error, after=error.after)
        case outcomes.Discard():
            return _failed(claim, error, reason=Reason.PERMANENT)
        case outcomes.Cancel():
            return _failed(claim, error, outcome=AttemptOutcome.CANCELLED, reason=Reason.CANCELLED)
        case PayloadError():
            return _failed(claim, error, reason=Reason.PERMANENT)
    return _failed(claim, error)


def release(claim: Claim, *, started: bool, error: str | None = None) -> Ack:
    """Give a claim back; it costs the job nothing unless its handler had started."""
    outcome = AttemptOutcome.INTERRUPTED if started else AttemptOutcome.RELEASED
    return Ack(claim.id, claim.attempt, claim.token, "release", outcome, started=started, error=error)


def unstorable(ack: Ack, error: BaseException) -> Ack:
    """What to write instead of an acknowledgement that the database refuses for its content."""
    line, trace = describe_error(error)
    return Ack(
        ack.id,
        ack.attempt,
        ack.token,
        "fail",
        AttemptOutcome.FAILED,
        error=f"result not storable: {line}"[:2000],
        traceback=trace,
        final=True,
        reason=Reason.PERMANENT,
    )


def timed_out(claim: Claim) -> Ack:
    """The attempt took too long and its handler does not end."""
    return _failed(
        claim,
        TimeoutError(f"the attempt took longer than its timeout of {claim.timeout:g} s"),
        outcome=AttemptOutcome.TIMEOUT,
    )


def _backoff(claim: Claim) -> Backoff:
    """The row's numbers, made sane: somebody may have written them by hand."""
    cap = min(max(claim.backoff_cap, 0.0), MAX_DELAY)
    base = min(max(claim.backoff_base, 0.0), cap)
    return Backoff(base, cap) if math.isfinite(base + cap) else Backoff()


def _failed(
    claim: Claim,
    error: BaseException,
    *,
    outcome: AttemptOutcome = AttemptOutcome.FAILED,
    reason: Reason | None = None,
    after: float | None = None,
) -> Ack:
    line, trace = describe_error(error)
    verdict = decide(
        failures=claim.failures,
        max_failures=claim.max_failures,
        permanent=reason is not None,
        backoff=_backoff(claim),
        after=after,
    )
    return Ack(
        claim.id,
        claim.attempt,
        claim.token,
        "fail",
        outcome,
        error=line,
        traceback=trace,
        delay=verdict.delay,
        final=verdict.final,
        reason=reason or verdict.reason,
    )
