"""What an outcome means for the job: a later try, the end, and when. Arithmetic only."""

from __future__ import annotations

import datetime
import math
import random
from dataclasses import dataclass

from lien.errors import UsageError
from lien.machine import Reason

DEFAULT_MAX_FAILURES = 20
DEFAULT_MAX_LOST = 20
DEFAULT_MAX_INTERRUPTED = 20
DEFAULT_TIMEOUT = 3600.0
MAX_BUDGET = 1_000_000
MAX_DELAY = 366 * 86_400 * 100.0
"""The longest delay accepted, in seconds (100 years)."""
_MAX_EXPONENT = 60


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential backoff with jitter: ``base * 2 ** (failures - 1)`` seconds, at most ``cap``, times 0.5 to 1.

    Jitter spreads jobs that failed together (Brooker, "Exponential Backoff And Jitter", 2015).
    """

    base: float = 5.0
    cap: float = 3600.0

    def __post_init__(self) -> None:
        """Refuse numbers that cannot be delays."""
        for name, value in (("base", self.base), ("cap", self.cap)):
            seconds(f"Backoff({name}=…)", value)
        if self.base > self.cap:
            raise UsageError(f"Backoff(base={self.base}, cap={self.cap}): base must not be larger than cap")

    def delay(self, failures: int, jitter: float | None = None) -> float:
        """Seconds to wait after this many failures; finite for every number.

        Args:
            failures: how often it has failed, 1 after the first time.
            jitter: a number from 0 to 1 instead of a random one.
        """
        exponent = min(max(failures - 1, 0), _MAX_EXPONENT)
        spread = random.random() if jitter is None else jitter  # noqa: S311 - not a secret
        return min(self.cap, self.base * 2.0**exponent) * (0.5 + 0.5 * spread)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to write for a failed attempt."""

    final: bool
    reason: Reason | None
    delay: float


def decide(
    *,
    failures: int,
    max_failures: int,
    permanent: bool,
    backoff: Backoff,
    after: float | None = None,
) -> Verdict:
    """The meaning of one more failure.

    Args:
        failures: failures counted before this one.
        max_failures: the budget; it is spent when failures ≥ max_failures.
        permanent: no later try can help.
        backoff: how long to wait otherwise.
        after: seconds asked for by the handler instead; no number at all (NaN) asks for nothing.
    """
    if permanent:
        return Verdict(final=True, reason=Reason.PERMANENT, delay=0.0)
    if failures + 1 >= max_failures:
        return Verdict(final=True, reason=Reason.EXHAUSTED, delay=0.0)
    delay = backoff.delay(failures + 1) if after is None or math.isnan(after) else after
    return Verdict(final=False, reason=None, delay=min(max(delay, 0.0), MAX_DELAY))


def seconds(name: str, value: float, *, least: float = 0.0) -> float:
    """A duration in seconds, checked.

    Raises:
        UsageError: not a finite number from ``least`` to 100 years.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UsageError(f"{name} is {value!r}: give a number of seconds")
    if not least <= value <= MAX_DELAY:  # NaN compares false
        raise UsageError(f"{name} is {value!r}: give seconds from {least:g} to {MAX_DELAY:g} (100 years)")
    return float(value)


def budget(name: str, value: int) -> int:
    """A budget, checked.

    Raises:
        UsageError: not an integer from 1 to 1,000,000.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_BUDGET:
        raise UsageError(f"{name} is {value!r}: give an integer from 1 to {MAX_BUDGET}")
    return value


def moment(name: str, value: object) -> datetime.datetime:
    """A point in time, checked.

    Raises:
        UsageError: not an aware datetime of a year from 1971 to 9000.
    """
    if not isinstance(value, datetime.datetime):
        raise UsageError(f"{name} is {value!r}: give an aware datetime, or a number of seconds instead")
    if value.utcoffset() is None:
        raise UsageError(f"{name} is {value!r}, which has no time zone: use datetime.now(UTC) + …, or seconds instead")
    if not 1971 <= value.year <= 9000:  # noqa: PLR2004 - what every engine stores with room to add to
        raise UsageError(f"{name} is {value!r}: give a year from 1971 to 9000")
    return value
