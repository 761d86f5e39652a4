"""``lien migrate``: the schema of the tables."""

from __future__ import annotations

import json

import click

from lien.cli import app
from lien.cli.invocation import Invocation
from lien.cli.options import Command
from lien.cli.text import block, line
from lien.errors import SchemaError, UsageError
from lien.queue import Lien


@click.command(cls=Command)
@click.option("--plan", is_flag=True, help="Only print the pending steps: SQL, and what it locks.")
@click.option("--check", is_flag=True, help="Only look: exit 4 when something is pending.")
@click.pass_obj
def migrate(invocation: Invocation, plan: bool, check: bool) -> None:
    """Create or upgrade the tables.

    Safe to run from several places at once, and while workers run: each release works with its own schema and with
    the one before.
    """
    if plan and check:
        raise UsageError("give --plan or --check, not both")
    jobs = app.database(invocation)
    if plan:
        _plan(jobs, invocation)
    elif check:
        _check(jobs, invocation)
    else:
        _apply(jobs, invocation)


def _plan(jobs: Lien, invocation: Invocation) -> None:
    steps = jobs.migrations.plan()
    if invocation.json:
        rows = [{"migration": s.migration, "title": s.title, "sql": s.sql} for s in steps]
        click.echo(json.dumps({"plan": rows}))
        return
    for step in steps:
        click.echo(f"-- {step.migration}: {line(step.title)}\n{block(step.sql)}\n")
    names = dict.fromkeys(step.migration for step in steps)
    text = f"pending: {', '.join(names)}" if names else "nothing is pending"
    click.echo(f"{line(jobs.store.masked_url)}: {text}", err=True)


def _check(jobs: Lien, invocation: Invocation) -> None:
    jobs.migrations.require()
    if pending := jobs.migrations.pending():
        raise SchemaError(f"{jobs.store.masked_url} lacks {', '.join(pending)}: run `lien migrate`")
    if invocation.json:
        click.echo(json.dumps({"pending": []}))
    click.echo(f"{line(jobs.store.masked_url)}: up to date", err=True)


def _apply(jobs: Lien, invocation: Invocation) -> None:
    done = jobs.migrate()
    if invocation.json:
        click.echo(json.dumps({"applied": done}))
    else:
        for name in done:
            click.echo(name)
    text = f"{len(done)} applied" if done else "up to date, nothing to do"
    click.echo(f"{line(jobs.store.masked_url)}: {text}", err=True)
