"""Run it: `python -m chaos [--engine E] [--full] [--seconds N] [--seed N]`; exit 1 when a promise was broken."""

from __future__ import annotations

import argparse
import dataclasses
import secrets
import sys

import click

from chaos.checker import INVARIANTS, Tally, check, story, violations
from chaos.run import Result, run
from chaos.settings import ENGINES, FULL, USUAL
from lien import clock

_SHOWN = 20


def main() -> int:
    """Run the plan on the engines and tell."""
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("--engine", choices=ENGINES, help="only this one")
    parser.add_argument("--full", action="store_true", help="ten times as long and as much")
    parser.add_argument("--seconds", type=float, help="how long faults go on, on each engine")
    parser.add_argument("--jobs", type=int, help="how many jobs, on each engine")
    parser.add_argument("--seed", type=int, help="of the dice: a number printed by an earlier run")
    arguments = parser.parse_args()
    plan = FULL if arguments.full else USUAL
    if arguments.seconds is not None:
        plan = dataclasses.replace(plan, seconds=arguments.seconds)
    if arguments.jobs is not None:
        plan = dataclasses.replace(plan, jobs=arguments.jobs)
    seed = arguments.seed if arguments.seed is not None else secrets.randbelow(1_000_000)
    click.echo(f"seed {seed}")
    broken = 0
    for engine in [arguments.engine] if arguments.engine else ENGINES:
        started = clock.monotonic()
        click.echo(f"\n{engine}")
        result = run(engine, plan, seed, lambda line: click.echo(f"  {line}"), fsync=arguments.full)
        tallies = check(result.log)
        broken += report(result, tallies)
        click.echo(f"  {clock.monotonic() - started:.0f} s")
    click.echo(f"\nseed {seed}: " + ("every promise was kept" if not broken else f"{broken} violations"))
    return 1 if broken else 0


def report(result: Result, tallies: dict[str, Tally]) -> int:
    """Tables of what was done and what was checked; the whole history of every job with a violation."""
    for line in result.complaints:
        click.echo(f"  ! {line}")
    click.echo("\n  done")
    for what, n in sorted(result.faults.items()):
        click.echo(f"  {n:9} {what}")
    click.echo("\n  jobs")
    for what, n in result.outcomes.most_common():
        click.echo(f"  {n:9} {what}")
    click.echo("\n    checked  violations  invariant")
    for number, tally in tallies.items():
        click.echo(f"  {tally.checked:9}  {len(tally.violations):10}  {number:>2} {INVARIANTS[number][0]}")
    found = violations(tallies)
    for violation in found[:_SHOWN]:
        click.echo(f"\n  VIOLATION of {violation.invariant}: job {violation.job_id}: {violation.text}")
        if violation.job_id in result.log.jobs:
            click.echo("  " + story(result.log.jobs[violation.job_id]).replace("\n", "\n  "))
    if len(found) > _SHOWN:
        click.echo(f"\n  … and {len(found) - _SHOWN} more")
    return len(found)


if __name__ == "__main__":
    sys.exit(main())
