"""Run the scenarios, print a table, write bench/results/latest.json."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.databases import database, fill

RESULTS = Path(__file__).parent / "results" / "latest.json"


@dataclass
class Result:
    """One figure; ``ratio`` is its value over the value of ``ratio_to`` in the same run."""

    scenario: str
    system: str
    engine: str
    value: float
    unit: str
    runs: int
    ratio_to: str | None = None
    ratio: float | None = None


def child(*command: str) -> dict[str, Any]:
    """The JSON that a module of the bench prints."""
    done = subprocess.run([sys.executable, "-m", *command], check=True, capture_output=True, text=True)
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def drain(url: str, engine: str, runs: int, jobs: int) -> list[Result]:
    """One worker process with no-op jobs against the bare loop, in turns; each pair gives one ratio."""
    results = []
    for concurrency in (500, 50, 10):
        n = jobs if concurrency >= 50 else jobs // 2  # noqa: PLR2004 - small batches are slower
        ceilings, rates, ratios = [], [], []
        for _ in range(runs):
            fill(url, n)
            bare = child("bench.ceiling", url, str(concurrency))
            assert bare["jobs"] == n, bare
            fill(url, n)
            ours = child("bench.worker", url, str(concurrency))
            ceilings.append(n / bare["seconds"])
            rates.append(n / ours["seconds"])
            ratios.append(rates[-1] / ceilings[-1])
        name = "drain" if concurrency == 500 else f"drain_{concurrency}"  # noqa: PLR2004 - the main one
        results += [
            Result(name, "ceiling", engine, statistics.median(ceilings), "jobs/s", runs),
            Result(
                name, "lien", engine, statistics.median(rates), "jobs/s", runs, "ceiling", statistics.median(ratios)
            ),
        ]
    return results


def pickup(url: str, engine: str, runs: int) -> list[Result]:
    """Commit of an enqueue to start of the handler, idle queue, against one commit."""
    fill(url, 0)
    measured = [child("bench.pickup", url, "60") for _ in range(runs)]
    commit = statistics.median(m["commit"] for m in measured)
    value = statistics.median(m["pickup"] for m in measured)
    ratio = statistics.median(m["pickup"] / m["commit"] for m in measured)
    return [
        Result("pickup", "commit", engine, commit, "ms", runs),
        Result("pickup", "lien", engine, value, "ms", runs, "commit", ratio),
    ]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--engine", action="append", choices=["postgresql", "sqlite"])
    parser.add_argument("--scenario", action="append", choices=["drain", "pickup"])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=30_000)
    parser.add_argument("--full", action="store_true", help="five runs of 100,000 jobs")
    options = parser.parse_args()
    if options.full:
        options.runs, options.jobs = 5, 100_000
    results: list[Result] = []
    for engine in options.engine or ["postgresql", "sqlite"]:
        with database(engine) as url:
            if "drain" in (options.scenario or ["drain"]):
                results += drain(url, engine, options.runs, options.jobs)
            if "pickup" in (options.scenario or ["pickup"]):
                results += pickup(url, engine, options.runs)
    print(f"{'scenario':10} {'system':8} {'engine':11} {'value':>12} {'unit':7} {'runs':>4}  ratio")
    for r in results:
        ratio = "" if r.ratio is None else f"{r.ratio:.2f} of {r.ratio_to}"
        print(f"{r.scenario:10} {r.system:8} {r.engine:11} {r.value:12,.1f} {r.unit:7} {r.runs:4}  {ratio}")
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps([asdict(r) for r in results], indent=1) + "\n")


if __name__ == "__main__":
    main()
