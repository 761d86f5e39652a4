"""Lanes: turns of classes, watermarks, rationed full looks."""

from __future__ import annotations

import uuid
from collections import Counter

import pytest

from lien.model import Claim, Lane
from lien.worker.lanes import (
    FULL_LOOK_AT_LEAST_EVERY,
    FULL_LOOK_EVERY,
    FULL_LOOK_SHARE,
    WEIGHTS,
    Lanes,
)


def claim(priority: int = 2, at: int = 1, id: int = 1, queue: str = "q") -> Claim:
    return Claim(id, 1, "t", "{}", queue, priority, at, 1, 0, 20, 0, 60.0, 5.0, 60.0, uuid.uuid4())


def see(lanes: Lanes, *claims: Claim, short: bool = False, now: float = 0.0) -> None:
    lanes.saw(list(claims), short=short, full=False, now=now, cost=0.0)


def busy(lanes: Lanes, present: set[int]) -> None:
    """Let these classes have jobs."""
    see(lanes, *(claim(priority) for priority in present), short=True)


def classes(lanes: Lanes, now: float = 0.0) -> list[int]:
    plan, _ = lanes.plan(now)
    return list(dict.fromkeys(lane.priority for lane in plan))


@pytest.mark.parametrize("phase", range(20))
def test_classes_lead_by_their_weights_exactly(phase):
    lanes = Lanes(["q"])
    busy(lanes, set(WEIGHTS))
    leads = Counter()
    for _ in range(sum(WEIGHTS.values())):
        leads[classes(lanes)[0]] += 1
        busy(lanes, set(WEIGHTS))
    assert leads == WEIGHTS


@pytest.mark.parametrize("present", [{0, 3}, {1, 2}, {2}, {0, 1, 2}, {1, 2, 3}])
def test_only_classes_that_have_jobs_take_turns(present):
    lanes = Lanes(["q"])
    busy(lanes, present)
    total = sum(WEIGHTS[priority] for priority in present)
    for _ in range(sum(WEIGHTS.values())):  # whatever the credit from before, it is used up
        classes(lanes)
        busy(lanes, present)
    leads = Counter()
    for _ in range(total * 4):
        order = classes(lanes)
        leads[next(priority for priority in order if priority in present)] += 1
        busy(lanes, present)
    for priority in present:
        assert abs(leads[priority] - 4 * WEIGHTS[priority]) <= 2


def test_no_class_waits_for_more_than_one_round():
    lanes = Lanes(["q"])
    busy(lanes, set(WEIGHTS))
    last = dict.fromkeys(WEIGHTS, 0)
    for turn in range(1, 400):
        lead = classes(lanes)[0]
        last[lead] = turn
        busy(lanes, set(WEIGHTS))
        if turn > 85:
            assert all(turn - at <= 85 for at in last.values())


def test_every_plan_has_every_lane_once():
    lanes = Lanes(["a", "b", "c"])
    for turn in range(50):
        plan, _ = lanes.plan(float(turn))
        assert sorted((lane.queue, lane.priority) for lane in plan) == [
            (queue, priority) for queue in "abc" for priority in range(4)
        ]
        see(lanes, claim(turn % 4, queue="abc"[turn % 3]), short=bool(turn % 2))


def test_a_class_that_was_empty_is_looked_at_first():
    lanes = Lanes(["q"])
    busy(lanes, {0})
    assert classes(lanes)[-1] == 0
    assert set(classes(lanes)[:3]) == {1, 2, 3}


def test_the_rest_behind_a_limit_stays_as_it_was():
    lanes = Lanes(["q"])
    busy(lanes, {0, 2})
    see(lanes, claim(0), short=False)  # 2 was not reached: nothing is known of it
    assert 2 in classes(lanes)[2:]


def test_queues_take_turns_within_a_class():
    lanes = Lanes(["a", "b", "c"])
    firsts = Counter()
    for _ in range(30):
        plan, _ = lanes.plan(0.0)
        firsts[plan[0].queue] += 1
    assert firsts == {"a": 10, "b": 10, "c": 10}


def test_phases_differ():
    first = {classes_in_a_row(Lanes(["q"])) for _ in range(60)}
    assert len(first) > 5


def classes_in_a_row(lanes: Lanes) -> tuple[int, ...]:
    leads = []
    for _ in range(30):
        busy(lanes, set(WEIGHTS))
        leads.append(classes(lanes)[0])
    return tuple(leads)


def floors(lanes: Lanes, now: float = 0.0) -> dict[tuple[str, int], object]:
    plan, _ = lanes.plan(now)
    return {(lane.queue, lane.priority): lane.floor for lane in plan}


def looked(lanes: Lanes, now: float = 0.0, cost: float = 0.0) -> None:
    lanes.saw([], short=True, full=True, now=now, cost=cost)


def test_a_floor_is_the_last_position_claimed_in_its_lane():
    lanes = Lanes(["a", "b"])
    looked(lanes, 0.0, cost=1.0)
    see(lanes, claim(2, 5, 9, "a"), claim(2, 5, 11, "a"), claim(2, 4, 99, "a"), claim(0, 1, 1, "b"))
    assert floors(lanes) == {
        **{(queue, priority): None for queue in "ab" for priority in range(4)},
        ("a", 2): (5, 11),
        ("b", 0): (1, 1),
    }


def test_the_first_look_is_full():
    plan, full = Lanes(["q"]).plan(0.0)
    assert full
    assert plan[0] == Lane("q", plan[0].priority, None)


def test_lower_moves_only_floors_above():
    lanes = Lanes(["q"])
    looked(lanes, 0.0, cost=1.0)
    see(lanes, claim(0, 5, 1), claim(1, 3, 1), claim(2, 9, 1))
    lanes.lower(4)
    found = floors(lanes)
    assert found["q", 0] == (4, 0)
    assert found["q", 1] == (3, 1)
    assert found["q", 2] == (4, 0)
    assert found["q", 3] is None
    lanes.lower(None)
    assert floors(lanes) == found


def test_lower_to_the_very_moment_of_a_floor():
    """Jobs of one statement share their moment: one with a smaller id may have come back."""
    lanes = Lanes(["q"])
    looked(lanes, 0.0, cost=1.0)
    see(lanes, claim(2, 5, 10))
    lanes.lower(5)
    assert floors(lanes)["q", 2] == (5, 0)


def test_reset_starts_from_the_head_at_once():
    lanes = Lanes(["q"])
    looked(lanes, 100.0, cost=10.0)
    see(lanes, claim(2, 5, 10))
    lanes.reset()
    plan, full = lanes.plan(100.0)
    assert full
    assert all(lane.floor is None for lane in plan)


@pytest.mark.parametrize("cost", [0.0, 0.001, 0.01, 0.1, 0.2, 1.0, 100.0])
def test_full_looks_are_rationed_by_their_cost(cost):
    lanes = Lanes(["q"])
    looked(lanes, 1000.0, cost=cost)
    see(lanes, claim(), short=False, now=1000.0)  # there is work: no hurry
    expected = min(max(cost / FULL_LOOK_SHARE, FULL_LOOK_EVERY), FULL_LOOK_AT_LEAST_EVERY)
    assert lanes.full_look_in(1000.0) == pytest.approx(expected)
    assert not lanes.plan(1000.0 + expected * 0.99)[1]
    assert lanes.plan(1000.0 + expected)[1]


def test_a_short_look_from_a_floor_is_followed_by_a_full_one_soon():
    lanes = Lanes(["q"])
    looked(lanes, 1000.0, cost=0.002)
    see(lanes, claim(), short=True, now=1000.0)
    assert lanes.full_look_in(1000.0) == pytest.approx(0.002 / FULL_LOOK_SHARE)


def test_no_cost_puts_full_looks_off_for_long():
    lanes = Lanes(["q"])
    looked(lanes, 0.0, cost=1e9)
    assert lanes.full_look_in(0.0) <= FULL_LOOK_AT_LEAST_EVERY
