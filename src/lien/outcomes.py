"""What a handler can say instead of returning a result: raise one of these, or return it."""

from __future__ import annotations

import datetime

from lien.errors import UsageError
from lien.policy import moment, seconds


class Outcome(Exception):
    """Base of the words below."""


class Retry(Outcome):
    """Fail this attempt and try again.

    Args:
        reason: kept as the attempt's error.
        after: seconds to wait; default: the task's backoff.
    """

    def __init__(self, reason: str = "the handler asked for a retry", *, after: float | None = None) -> None:
        super().__init__(reason)
        self.after = None if after is None else seconds("Retry(after=…)", after)


class Snooze(Outcome):
    """Try again later without spending any budget.

    Args:
        after: seconds to wait.
        until: an aware datetime instead.
    """

    def __init__(self, after: float | None = None, *, until: datetime.datetime | None = None) -> None:
        if (after is None) == (until is None):
            raise UsageError("Snooze needs either after=… (seconds) or until=… (an aware datetime)")
        super().__init__(f"snoozed for {after} s" if until is None else f"snoozed until {until}")
        self.after = 0.0 if after is None else seconds("Snooze(after=…)", after)
        self.until = None if until is None else moment("Snooze(until=…)", until)


class Discard(Outcome):
    """The job fails for good, reason ``permanent``: no later try can help."""


class Cancel(Outcome):
    """The job ends as failed (cancelled)."""
