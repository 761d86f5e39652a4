"""One run on one engine: start everybody, hurt them, let them finish, and gather what they left behind."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chaos.arena import Arena, arena
from chaos.checker import Log, Told
from chaos.crew import Crew
from chaos.faults import PATIENCE, Faults
from chaos.settings import CANCEL_GRACE, GRACE, LEASE, SLACK, Plan
from lien import clock

_SETTLE = 90.0
_BUSINESS = frozenset({"business", "savepoints", "bulk", "unique"})


@dataclass(frozen=True, slots=True)
class Result:
    """What a run left behind."""

    log: Log
    faults: Counter[str]
    outcomes: Counter[str]
    complaints: list[str]


def run(
    engine: str, plan: Plan, seed: int, tell: Callable[[str], None], *, fsync: bool = False, settle: float = _SETTLE
) -> Result:
    """Carry out a plan on a fresh database.

    Args:
        engine: `postgresql` or `sqlite`.
        plan: what to do.
        seed: of all dice, but for those of the machine.
        tell: takes lines about the progress.
        fsync: whether PostgreSQL's commits wait for the disk.
        settle: seconds that all jobs have to end once the faults are over.
    """
    dice = random.Random(f"{seed} {engine}")
    with arena(engine, fsync=fsync) as where:
        crew = Crew(where, seed, plan.workers)
        try:
            for number in range(plan.producers):
                share = plan.jobs // plan.producers
                crew.produce(number, share, plan.seconds, plan.poison // plan.producers)
            crew.keep_up()
            faults = Faults(crew, plan.on(engine), dice)
            faults.run(tell)
            _settle(crew, faults, tell, settle)
            crew.drain_all(PATIENCE)
        finally:
            crew.end()
        return _gathered(where, crew, faults)


def _settle(crew: Crew, faults: Faults, tell: Callable[[str], None], seconds: float) -> None:
    """Wait for the producers and then for the last job."""
    deadline = clock.monotonic() + 300.0
    while any(p.process.poll() is None for p in crew.producers) and clock.monotonic() < deadline:
        faults.wait_until(clock.monotonic() + 0.2)
    tell(f"the faults are over, {crew.arena.live()} jobs are left")
    deadline = clock.monotonic() + seconds
    while crew.arena.live() and clock.monotonic() < deadline:
        faults.wait_until(clock.monotonic() + 0.3)


def _gathered(where: Arena, crew: Crew, faults: Faults) -> Result:
    jobs = where.jobs()
    expected, not_before, stories = _produced(where)
    complaints = [*crew.crashed, *stories]
    complaints += [f"{p.name} ended with code {p.process.returncode}" for p in crew.producers if p.process.returncode]
    for path in sorted(where.folder.glob("chaos-w*.jsonl")):
        for line in _lines(path):
            if line["job"] in jobs and line["attempt"] is not None:
                told = Told(path.stem, line["at"], line["what"], line["job"], line["attempt"])
                jobs[told.job_id].told.append(told)
    done = faults.done
    done["SIGKILL by a handler"] += crew.deaths
    done["drains"] = len(crew.drains)
    done.update({f"operator: {what}": n for what, n in faults.operator.counts.items()})
    outcomes = Counter(
        job.ending.state + (f" ({job.ending.reason})" if job.ending.reason else "") if job.ending else "not ended"
        for job in jobs.values()
    )
    if stderr := crew.stderr().strip():
        complaints += stderr.splitlines()[-40:]
    log = Log(
        jobs=jobs,
        expected=expected,
        not_before=not_before,
        cancels=faults.operator.cancels,
        drains=crew.drains,
        accepted_repeats=faults.operator.accepted,
        repeats=faults.operator.repeats,
        outages=crew.outages,
        well=crew.well,
        lease=LEASE,
        drain=GRACE + CANCEL_GRACE,
        slack=SLACK + 3 * faults.worst_stall,
    )
    return Result(log, done, outcomes, complaints)


def _produced(where: Arena) -> tuple[dict[str, str], dict[str, int], list[str]]:
    """What the producers say about every mark: `yes`, `no` or `maybe`, and not before when."""
    orders = where.orders()
    expected: dict[str, str] = {}
    not_before: dict[str, int] = {}
    for path in sorted(where.folder.glob("chaos-p*.jsonl")):
        way = ""
        for line in _lines(path):
            if "not_before" in line:
                not_before[line["mark"]] = line["not_before"]
            elif "way" in line:
                way = line["way"]
                # Until its outcome is known, the business tables of the same transaction decide.
                expected |= {mark: _by_orders(mark, way, orders) for mark in line["marks"]}
            elif line.get("outcome") == "committed":
                expected |= dict.fromkeys(line["created"], "yes") | dict.fromkeys(line["undone"], "no")
            elif line.get("outcome") == "rolled_back":
                expected |= dict.fromkeys(line["created"] + line["undone"], "no")
    wrong = [mark for mark, said in expected.items() if mark in orders and said == "no"]
    return expected, not_before, [f"the order of {mark} is there, though it was rolled back" for mark in wrong]


def _by_orders(mark: str, way: str, orders: set[str]) -> str:
    if way not in _BUSINESS:
        return "maybe"
    return "yes" if mark in orders else "no"


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    for text in path.read_text().splitlines():
        try:
            yield json.loads(text)
        except ValueError:  # its writer was killed in the middle of it
            continue
