"""Where to look for the next jobs: order of classes, and the position from which to start in each lane. Pure.

Watermarks: a scan that always starts at the head of its index walks over the rows that were claimed before and are
not vacuumed yet; while some transaction elsewhere holds an old snapshot there are ever more of them. So a scan starts
where the last one ended, and from the head now and then, because jobs can come to stand behind that position: late
commits, promotions, releases. Full looks are rationed by their own cost.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

from lien.model import PRIORITIES, Claim, Lane

WEIGHTS = {0: 64, 1: 16, 2: 4, 3: 1}
FULL_LOOK_EVERY = 1.0
FULL_LOOK_SHARE = 0.05
FULL_LOOK_AT_LEAST_EVERY = 5.0


class Lanes:
    """The lanes of one worker: its queues times the four classes.

    Classes take turns by smooth weighted round robin (64:16:4:1; nginx's algorithm), from a random phase so that many
    short-lived workers serve every class. A class that was found empty does not take part, but is looked at first:
    its next job is not made to wait for a turn.
    """

    def __init__(self, queues: Iterable[str]) -> None:
        self._queues = list(queues)
        self._floors: dict[tuple[str, int], tuple[Any, int] | None] = {
            (queue, priority): None for priority in PRIORITIES.values() for queue in self._queues
        }
        self._credit = dict.fromkeys(WEIGHTS, 0)
        self._empty = set(WEIGHTS)
        for _ in range(random.randrange(sum(WEIGHTS.values()))):  # noqa: S311 - not a secret
            self._lead(set(WEIGHTS))
        self._turn = 0
        self._last_full = float("-inf")
        self._full_cost = 0.0
        self._was_short = True

    def plan(self, now: float) -> tuple[tuple[Lane, ...], bool]:
        """The lanes to try, in order, and whether this is a full look (from the head of every lane)."""
        full = self.full_look_in(now) <= 0.0
        present = set(WEIGHTS) - self._empty
        order = sorted(self._empty)
        if present:
            lead = self._lead(present)
            order += [lead, *sorted(present - {lead})]
        self._turn = (self._turn + 1) % max(len(self._queues), 1)
        queues = self._queues[self._turn :] + self._queues[: self._turn]
        floors = self._floors
        return (
            tuple(Lane(q, p, None if full else floors[q, p]) for p in order for q in queues),
            full,
        )

    def saw(self, claims: list[Claim], *, short: bool, full: bool, now: float, cost: float) -> None:
        """Learn from an answer.

        Args:
            claims: what was claimed.
            short: fewer than asked for: every lane was walked to its end.
            full: it was a full look.
            now: local seconds.
            cost: seconds that the look took.
        """
        if full:
            self._last_full, self._full_cost = now, cost
        tops: dict[tuple[str, int], tuple[Any, int]] = {}
        for claim in claims:
            lane, position = (claim.queue, claim.priority), (claim.available_at, claim.id)
            if lane not in tops or position > tops[lane]:
                tops[lane] = position
        self._floors.update(tops)
        present = {priority for _, priority in tops}
        # What was walked and gave nothing is empty; where the limit cut the walk short, the rest stays as it was.
        self._empty = set(WEIGHTS) - present if short else self._empty - present
        self._was_short = short and not full

    def lower(self, available_at: Any) -> None:
        """Jobs from this moment on were put back or promoted: start no later than there."""
        if available_at is None:
            return
        for lane, floor in self._floors.items():
            if floor is not None and floor[0] >= available_at:
                self._floors[lane] = (available_at, 0)

    def reset(self) -> None:
        """Start from the head everywhere, at once: the connection is a new one."""
        self._floors = dict.fromkeys(self._floors)
        self._last_full = float("-inf")

    def full_look_in(self, now: float) -> float:
        """Seconds until the next look is a full one."""
        pause = self._full_cost / FULL_LOOK_SHARE
        if not self._was_short:
            pause = max(pause, FULL_LOOK_EVERY)
        return self._last_full + min(pause, FULL_LOOK_AT_LEAST_EVERY) - now

    def _lead(self, present: set[int]) -> int:
        total = 0
        for priority in present:
            self._credit[priority] += WEIGHTS[priority]
            total += WEIGHTS[priority]
        lead = max(sorted(present), key=self._credit.__getitem__)
        self._credit[lead] -= total
        return lead
