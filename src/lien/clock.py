"""Local clocks, for durations only. Deadlines that workers share are decided by the database's clock."""

from __future__ import annotations

import time

_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", None)


def monotonic() -> float:
    """Seconds that never step back and, where the system offers it, go on while the machine is suspended.

    CLOCK_MONOTONIC stands still in suspend on Linux; a lease does not.
    """
    if _BOOTTIME is None:
        return time.monotonic()
    return time.clock_gettime(_BOOTTIME)


def host_time_us() -> int:
    """Microseconds since 1970 UTC by the host's clock: SQLite's database clock, as it has none of its own."""
    return time.time_ns() // 1000


def sleep(seconds: float) -> None:
    """Pause this thread."""
    time.sleep(seconds)
