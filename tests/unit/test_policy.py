"""What a failure means, for every combination, and how long a job waits after it."""

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lien.errors import UsageError
from lien.machine import TABLE, Reason, State
from lien.policy import (
    DEFAULT_MAX_FAILURES,
    MAX_BUDGET,
    MAX_DELAY,
    Backoff,
    Verdict,
    budget,
    decide,
    seconds,
)

PLAIN = Backoff(base=5, cap=3600)
AFTERS = [None, 0.0, 17.5, -3.0, MAX_DELAY * 2, math.inf, -math.inf, math.nan]


@pytest.mark.parametrize("after", AFTERS)
@pytest.mark.parametrize("permanent", [False, True])
@pytest.mark.parametrize("max_failures", [1, 2, 3, DEFAULT_MAX_FAILURES])
def test_every_verdict(max_failures: int, permanent: bool, after: float | None) -> None:
    for failures in range(max_failures + 2):
        verdict = decide(
            failures=failures,
            max_failures=max_failures,
            permanent=permanent,
            backoff=PLAIN,
            after=after,
        )
        if permanent:
            assert verdict == Verdict(final=True, reason=Reason.PERMANENT, delay=0.0)
        elif failures + 1 >= max_failures:
            assert verdict == Verdict(final=True, reason=Reason.EXHAUSTED, delay=0.0)
        else:
            assert (verdict.final, verdict.reason) == (False, None)
            least, most = expected_delay(failures + 1, after)
            assert least <= verdict.delay <= most


def expected_delay(failures: int, after: float | None) -> tuple[float, float]:
    if after is None or math.isnan(after):
        most = min(3600.0, 5.0 * 2 ** (failures - 1))
        return most / 2, most
    clamped = min(max(after, 0.0), MAX_DELAY)
    return clamped, clamped


@given(st.integers(0, 2**31), st.integers(1, 2**31), st.booleans())
def test_a_verdict_is_an_arrow_of_the_table(failures: int, max_failures: int, permanent: bool) -> None:
    verdict = decide(failures=failures, max_failures=max_failures, permanent=permanent, backoff=PLAIN)
    assert (State.FAILED if verdict.final else State.SCHEDULED) in TABLE["fail"].target
    assert (verdict.reason is not None) is verdict.final


def test_a_budget_of_n_allows_n_attempts() -> None:
    finals = [decide(failures=n, max_failures=3, permanent=False, backoff=PLAIN).final for n in range(3)]
    assert finals == [False, False, True]


@pytest.mark.parametrize(
    ("failures", "delay"),
    [(0, 5), (1, 5), (2, 10), (3, 20), (10, 2560), (11, 3600), (16, 3600), (43, 3600)],
)
def test_the_delay_doubles_up_to_the_cap(failures: int, delay: float) -> None:
    assert PLAIN.delay(failures, jitter=1) == delay
    assert PLAIN.delay(failures, jitter=0) == delay / 2


@pytest.mark.parametrize("failures", [16, 43, 1075, 2**31])
@pytest.mark.parametrize("cap", [3600.0, MAX_DELAY])
@pytest.mark.parametrize("jitter", [0.0, 1.0])
def test_the_delay_is_finite_after_very_many_failures(failures: int, cap: float, jitter: float) -> None:
    backoff = Backoff(base=5, cap=cap)
    full = min(cap, 5 * 2 ** min(failures - 1, 60))
    assert backoff.delay(failures, jitter) == full * (1.0 if jitter else 0.5)


@given(
    ends=st.lists(st.floats(0, MAX_DELAY), min_size=2, max_size=2).map(sorted),
    failures=st.integers(-1, 2**63),
    jitter=st.none() | st.floats(0, 1),
)
@example(ends=[5e-324, MAX_DELAY], failures=2**31, jitter=1.0)
@example(ends=[MAX_DELAY, MAX_DELAY], failures=1075, jitter=None)
def test_the_delay_is_never_more_than_the_cap(ends: list[float], failures: int, jitter: float | None) -> None:
    base, cap = ends
    delay = Backoff(base=base, cap=cap).delay(failures, jitter)
    assert math.isfinite(delay)
    assert 0 <= delay <= cap


def test_chance_spreads_the_delays() -> None:
    delays = {PLAIN.delay(1) for _ in range(50)}
    assert len(delays) > 40
    assert all(2.5 <= delay <= 5 for delay in delays)


@pytest.mark.parametrize(
    ("base", "cap", "said"),
    [
        (10, 5, "Backoff(base=10, cap=5): base must not be larger than cap"),
        (-1, 5, "Backoff(base=…) is -1: give seconds from 0 to 3.16224e+09 (100 years)"),
        (1, math.inf, "Backoff(cap=…) is inf: give seconds from 0 to 3.16224e+09 (100 years)"),
        (math.nan, 5, "Backoff(base=…) is nan: give seconds from 0 to 3.16224e+09 (100 years)"),
        ("5", 5, "Backoff(base=…) is '5': give a number of seconds"),
        (True, 5, "Backoff(base=…) is True: give a number of seconds"),
    ],
)
def test_numbers_that_are_no_delay_are_refused(base: float, cap: float, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        Backoff(base=base, cap=cap)
    assert str(caught.value) == said


def test_seconds() -> None:
    assert seconds("timeout", 3) == 3.0
    assert isinstance(seconds("timeout", 3), float)
    assert seconds("delay", MAX_DELAY) == MAX_DELAY
    with pytest.raises(UsageError, match=r"^timeout is 0: give seconds from 1 to"):
        seconds("timeout", 0, least=1)
    with pytest.raises(UsageError, match=r"^delay is None: give a number of seconds$"):
        seconds("delay", None)  # type: ignore[arg-type]
    for wrong in (10**400, -(10**400)):
        with pytest.raises(UsageError):
            seconds("delay", wrong)


@pytest.mark.parametrize("value", [1, 20, MAX_BUDGET])
def test_budgets(value: int) -> None:
    assert budget("max_failures", value) == value


@pytest.mark.parametrize("value", [0, -1, MAX_BUDGET + 1, True, 2.0, "3", None])
def test_numbers_that_are_no_budget_are_refused(value: int) -> None:
    with pytest.raises(UsageError) as caught:
        budget("max_failures", value)
    assert str(caught.value) == f"max_failures is {value!r}: give an integer from 1 to 1000000"
