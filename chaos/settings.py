"""The one setting that scales everything, and what a run consists of."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from lien.worker import Settings

ROOT = Path(__file__).resolve().parent.parent
LEASE = float(os.environ.get("LIEN_CHAOS_LEASE", "2"))
"""Seconds that a claim stands; the drain, slow handlers and stops of processes follow from it."""
GRACE = LEASE
CANCEL_GRACE = LEASE / 4
STOPPED_FOR = LEASE * 1.75
SLACK = 5.0
"""Seconds that a promise may be late, as machines are; the stalls that this run measured come on top."""
MUTANT = "LIEN_CHAOS_MUTANT"
ENGINES = ("postgresql", "sqlite")


def worker_settings(identity: str) -> Settings:
    """How every worker of a run works."""
    return Settings(
        lease=LEASE, grace=GRACE, cancel_grace=CANCEL_GRACE, poll=LEASE / 4, concurrency=12, identity=identity
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much of everything happens on one engine."""

    seconds: float
    jobs: int
    workers: int = 3
    producers: int = 2
    kills: int
    backends: int
    stops: int
    rolls: int
    crashes: int
    poison: int
    storms: int

    def on(self, engine: str) -> Plan:
        """The same for an engine: an embedded database has no backends and no server."""
        if engine == "postgresql":
            return self
        return Plan(
            seconds=self.seconds,
            jobs=self.jobs,
            workers=self.workers,
            producers=self.producers,
            kills=self.kills,
            backends=0,
            stops=self.stops,
            rolls=self.rolls,
            crashes=0,
            poison=self.poison,
            storms=self.storms,
        )


USUAL = Plan(seconds=60, jobs=3400, kills=20, backends=50, stops=5, rolls=2, crashes=1, poison=6, storms=20)
FULL = Plan(seconds=600, jobs=33_000, kills=110, backends=510, stops=26, rolls=10, crashes=5, poison=30, storms=200)
SHORT = Plan(
    seconds=12, jobs=900, workers=2, producers=1, kills=3, backends=3, stops=2, rolls=1, crashes=0, poison=3, storms=24
)
"""For a mutant: a little of everything, as a checker that works needs no luck."""
