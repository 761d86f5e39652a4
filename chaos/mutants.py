"""Removes one guard at a time from the statements in memory and shows whether the checker notices.

`python -m chaos.mutants [--engine E] [NAME …]`. Every process of a run calls `mutate`, which reads the mutant's name
from the environment. A mutant that no longer fits the statements is an error, so this list cannot fall behind.
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
from dataclasses import dataclass

import click

from chaos.settings import ENGINES, MUTANT, SHORT
from lien import clock
from lien.engines.contract import Engine
from lien.sqlfile import Statement

_SETTLE = 10.0

Edit = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Mutant:
    """One guard less.

    Attributes:
        name: of the guard.
        engine: whose statements it changes.
        statements: which ones.
        edits: what is replaced by what in each of them; every edit must fit at least one.
        backed_by: another guard that holds alone as well: then it may go unnoticed.
    """

    name: str
    engine: str
    statements: tuple[str, ...]
    edits: tuple[Edit, ...]
    backed_by: str = ""


def mutate(engine: Engine) -> None:
    """Apply the mutant that the environment names, if it does and if it is one of this engine."""
    name = os.environ.get(MUTANT)
    if not name:
        return
    for mutant in MUTANTS:
        if mutant.name == name and mutant.engine == engine.name:
            apply(mutant, engine)
            return
    raise ValueError(f"{MUTANT}={name}: {engine.name} has no such mutant")


def apply(mutant: Mutant, engine: Engine) -> None:
    """Change the statements of one engine.

    Raises:
        ValueError: the statements are no longer what the mutant was written for.
    """
    unused = set(mutant.edits)
    for name in mutant.statements:
        statement = engine.statements[name]
        text = statement.text
        for old, new in mutant.edits:
            if old in text:
                text = text.replace(old, new)
                unused.discard((old, new))
        if text == statement.text:
            raise ValueError(f"mutant {mutant.name} changes nothing in {name} of {engine.name}")
        engine.statements[name] = Statement(name, text, statement.transitions)
    if unused:
        raise ValueError(f"mutant {mutant.name} of {engine.name}: not found: {sorted(unused)}")


def _postgresql(name: str, statements: str, *edits: Edit, backed_by: str = "") -> Mutant:
    return Mutant(name, "postgresql", tuple(statements.split()), edits, backed_by)


def _sqlite(name: str, statements: str, *edits: Edit, backed_by: str = "") -> Mutant:
    return Mutant(name, "sqlite", tuple(statements.split()), edits, backed_by)


_PG_TOKEN: tuple[Edit, ...] = (
    ("j.claim_token = CAST(:token AS uuid)", "CAST(:token AS uuid) IS NOT NULL"),
    ("claim_token = CAST(:token AS uuid)", "CAST(:token AS uuid) IS NOT NULL"),
)
_PG_NOW = "(SELECT clock_timestamp())"
_LITE_TOKEN: Edit = ("claim_token = :token", ":token IS NOT NULL")
_WAITING = "('scheduled', 'runnable')"
_ANY = "('scheduled', 'runnable', 'claimed')"

MUTANTS = (
    _postgresql("token in succeed", "succeed succeed_with_result", _PG_TOKEN[1]),
    _postgresql("token in fail", "fail", *_PG_TOKEN),
    _postgresql("token in snooze", "snooze", *_PG_TOKEN),
    _postgresql("token in release", "release", *_PG_TOKEN),
    _postgresql(
        "token in renew",
        "renew",
        (" AND j.claim_token = h.token", ""),
        (" AND claim_token = ANY(CAST(:tokens AS uuid[]))", ""),
    ),
    _postgresql("lease in reap", "reap", (f"AND lease_expires_at < {_PG_NOW}", "")),
    _postgresql("attempt + 1 in claim", "claim", ("LEAST(attempt, 2147483646) + 1", "GREATEST(attempt, 1)")),
    _postgresql(
        "fence in claim",
        "claim",
        ("fence = (SELECT fence FROM drawn)", "fence = 1"),
        (
            "AND fence < (SELECT fence FROM drawn)",
            "",
        ),
    ),
    _postgresql("length of the lease in claim", "claim", ("secs => CAST(:lease AS", "secs => 100 * CAST(:lease AS")),
    _postgresql(
        "one attempt row in succeed",
        "succeed succeed_with_result",
        (
            "fence, claimed_at FROM done",
            "fence, claimed_at FROM done CROSS JOIN generate_series(1, 2)",
        ),
    ),
    _postgresql(
        "attempt row in reap",
        "reap",
        (
            "fence, claimed_at\n    FROM held",
            "fence, claimed_at\n    FROM held WHERE false",
        ),
    ),
    _postgresql(
        "deletion in succeed",
        "succeed succeed_with_result",
        ("DELETE FROM", "UPDATE"),
        (
            "lien_job\n    WHERE id",
            "lien_job SET cancel_requested = cancel_requested\n    WHERE id",
        ),
    ),
    _postgresql(
        "cancel flag in fail",
        "fail",
        ("v.final OR j.cancel_requested AS ends", "v.final AS ends"),
        (
            "SET state = 'scheduled',",
            "SET state = 'scheduled', cancel_requested = false,",
        ),
    ),
    _postgresql(
        "cancel flag in reap",
        "reap",
        ("CASE WHEN cancel_requested THEN 'cancelled' WHEN", "CASE WHEN"),
        (
            "SET state = 'scheduled',",
            "SET state = 'scheduled', cancel_requested = false,",
        ),
    ),
    _postgresql("budget in reap", "reap", ("lost >= max_lost - 1", "lost >= max_lost + 1000")),
    _postgresql("budget in release", "release", ("j.interrupted >= j.max_interrupted - 1", "false")),
    _postgresql("started in release", "release", ("CASE WHEN h.started THEN 1 ELSE 0 END", "1")),
    _postgresql(
        "failures + 1 in fail", "fail", ("failures = LEAST(j.failures, 2147483646) + 1", "failures = j.failures")
    ),
    _postgresql("due in promote", "promote", (f"available_at <= {_PG_NOW}", "true")),
    _postgresql("due in enqueue", "enqueue", ("due.at <= clock_timestamp()", "true")),
    _postgresql("time in expire", "expire", (f"expires_at <= {_PG_NOW}", "true")),
    _postgresql("history in cancel", "cancel", ("last_error\n    FROM gone", "last_error\n    FROM gone WHERE false")),
    _postgresql("state in cancel", "cancel", (_WAITING, _ANY)),
    _postgresql(
        "lock and state in claim",
        "claim",
        ("FOR UPDATE SKIP LOCKED", ""),
        (
            "AND state || '' = 'runnable'\n        AND fence < (SELECT fence FROM drawn)",
            "",
        ),
    ),
    _postgresql("lock in claim", "claim", ("FOR UPDATE SKIP LOCKED", ""), backed_by="the state test in the update"),
    _postgresql(
        "fence < in claim",
        "claim",
        (
            "AND fence < (SELECT fence FROM drawn)",
            "",
        ),
        backed_by="the fence is drawn behind the row locks",
    ),
    _postgresql(
        "state in succeed",
        "succeed succeed_with_result",
        (
            " AND state || '' = 'claimed'",
            "",
        ),
        backed_by="CHECK lien_job_claim: a token means claimed",
    ),
    _postgresql("SKIP LOCKED in reap", "reap", (" SKIP LOCKED", ""), backed_by="the row locks"),
    _sqlite("token in succeed", "succeed_attempts succeed_history succeed_with_result succeed", _LITE_TOKEN),
    _sqlite("token in fail", "fail_attempts fail_history fail_end fail", _LITE_TOKEN),
    _sqlite("token in snooze", "snooze_attempts snooze_history snooze_end snooze", _LITE_TOKEN),
    _sqlite("token in release", "release_attempts release_history release_end release", _LITE_TOKEN),
    _sqlite("token in renew", "renew", ("AND claim_token = json_extract(h.value, '$[1]')", "")),
    _sqlite("lease in reap", "reap_pick reap_attempts reap_history reap_end reap", ("AND lease_expires_at < :now", "")),
    _sqlite("attempt + 1 in claim", "claim", ("min(attempt, 2147483646) + 1", "max(attempt, 1)")),
    _sqlite("fence in claim", "claim", ("fence = :fence", "fence = 1"), (" AND fence < :fence", "")),
    _sqlite("length of the lease in claim", "claim", (":now + :lease_us", ":now + 100 * :lease_us")),
    _sqlite("attempt row in reap", "reap_attempts", ("AND lease_expires_at < :now", "AND false")),
    _sqlite(
        "deletion in succeed",
        "succeed",
        (
            "DELETE FROM lien_job\n",
            "UPDATE lien_job SET cancel_requested = cancel_requested\n",
        ),
    ),
    _sqlite(
        "cancel flag in fail",
        "fail_history fail_end fail",
        ("(cancel_requested OR json_extract(v.value, '$[1]'))", "json_extract(v.value, '$[1]')"),
        ("cancel_requested\n        OR id IN", "id IN"),
        ("AND NOT cancel_requested AND NOT", "AND NOT"),
        ("SET state = 'scheduled',", "SET state = 'scheduled', cancel_requested = 0,"),
    ),
    _sqlite(
        "cancel flag in reap",
        "reap_history reap_end reap",
        ("(cancel_requested OR lost >= max_lost - 1)", "(lost >= max_lost - 1)"),
        ("AND NOT cancel_requested AND lost", "AND lost"),
        ("SET state = 'scheduled',", "SET state = 'scheduled', cancel_requested = 0,"),
    ),
    _sqlite(
        "budget in reap",
        "reap_pick reap_attempts reap_history reap_end reap",
        (
            "lost >= max_lost - 1",
            "lost >= max_lost + 1000",
        ),
        ("lost < max_lost - 1", "lost < max_lost + 1000"),
    ),
    _sqlite(
        "budget in release",
        "release_attempts release_history release_end release",
        ("interrupted >= max_interrupted - 1", "interrupted >= max_interrupted + 1000"),
    ),
    _sqlite("started in release", "release", ("2147483646) + json_extract(v.value, '$[1]')", "2147483646) + 1")),
    _sqlite("failures + 1 in fail", "fail", ("failures = min(failures, 2147483646) + 1", "failures = failures")),
    _sqlite("due in promote", "promote", ("available_at <= :now", "true")),
    _sqlite("due in enqueue", "enqueue", ("due.at <= :now", "true")),
    _sqlite("time in expire", "expire_pick expire_history expire", ("expires_at <= :now", "true")),
    _sqlite("history in cancel", "cancel_history", ("WHERE id = :id AND", "WHERE false AND")),
    _sqlite("state in cancel", "cancel_history cancel", (_WAITING, _ANY)),
    _sqlite(
        "state in claim",
        "claim",
        (
            "AND state || '' = 'runnable' ",
            "",
        ),
        backed_by="BEGIN IMMEDIATE: what was picked is still runnable",
    ),
    _sqlite(
        "fence < in claim",
        "claim",
        (" AND fence < :fence", ""),
        backed_by="the counter is raised in the same transaction",
    ),
    _sqlite(
        "state in succeed",
        "succeed_attempts succeed_history succeed_with_result succeed",
        (
            " AND state || '' = 'claimed'",
            "",
        ),
        backed_by="CHECK lien_job_claim: a token means claimed",
    ),
)


def main() -> int:
    """Run them; exit 1 when one that nothing else covers went unnoticed."""
    from chaos.checker import check, violations
    from chaos.run import run

    parser = argparse.ArgumentParser(prog="python -m chaos.mutants", description=__doc__)
    parser.add_argument("--engine", choices=ENGINES, help="only this one")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1_000_000))
    parser.add_argument("names", nargs="*", help="mutants; default: all")
    arguments = parser.parse_args()
    click.echo(f"seed {arguments.seed}")
    missed = 0
    for mutant in MUTANTS:
        if arguments.engine not in {None, mutant.engine} or (arguments.names and mutant.name not in arguments.names):
            continue
        started = clock.monotonic()
        os.environ[MUTANT] = mutant.name
        try:
            result = run(mutant.engine, SHORT, arguments.seed, lambda line: None, settle=_SETTLE)  # noqa: ARG005
        finally:
            del os.environ[MUTANT]
        tallies = check(result.log)
        by = " ".join(f"{n}:{len(tally.violations)}" for n, tally in tallies.items() if tally.violations)
        found = bool(violations(tallies))
        missed += not found and not mutant.backed_by
        verdict = f"caught by {by}" if found else "survives" + (f": {mutant.backed_by}" if mutant.backed_by else "")
        click.echo(f"{mutant.engine:11} {mutant.name:30} {clock.monotonic() - started:4.0f} s  {verdict}")
    click.echo(f"{missed} went unnoticed that nothing else covers")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
