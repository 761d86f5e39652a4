"""``lien demo``: a small shop on a fresh database, whose workers are really killed and stopped."""

from __future__ import annotations

import os
import random
import secrets
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from lien.drivers.classify import first_line, mask_secrets
from lien.errors import UsageError

if TYPE_CHECKING:
    from lien.demo.ledger import Line
    from lien.demo.screen import Scene, Screen

DEADLINE = 50.0
"""Seconds after which the demo gives up; it takes about 12."""
_INTERRUPTED = 130


class _TookTooLong(click.ClickException):
    """Not an error of the books: the demo could not be played to its end in time."""


@click.command("demo")
@click.option("--url", metavar="URL", help="Play on this PostgreSQL, in a schema of its own.")
@click.option(
    "--orders",
    type=click.IntRange(20, 1000),
    default=200,
    show_default=True,
    help="How many customers come.",
)
@click.option("--seed", type=int, default=1, show_default=True, help="Decides who of them changes his mind.")
@click.option("--keep", is_flag=True, help="Keep the database afterwards, and say where it is.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@click.option("--no-color", is_flag=True, help="No colors.  [env: NO_COLOR]")
@click.pass_context
def command(
    context: click.Context,
    url: str | None,
    orders: int,
    seed: int,
    *,
    keep: bool,
    as_json: bool,
    no_color: bool,
) -> None:
    """See Lien keep its promises while its workers are killed and stopped.

    A small shop takes orders, each with a job that sends the receipt. Some orders are rolled
    back. One worker is killed with SIGKILL inside a job, one is stopped with SIGSTOP until another
    has done its job, one runs a job that kills every process. Then the books are made up from the
    database: each order has its receipt, once.

    Without --url it plays on SQLite in a temporary folder. Exit code 1: the books do not balance.
    """
    given = context.obj  # the global options, when they stood before the command's name
    url = url or getattr(given, "url", None)
    as_json = as_json or bool(getattr(given, "json", False))
    color = False if no_color or getattr(given, "no_color", False) else None
    if url is not None and not url.startswith("postgres"):
        raise UsageError(
            "the demo plays on PostgreSQL (--url postgresql://...) or, without --url, on a SQLite file of its own"
        )
    try:
        with _signals(), _place(url, keep=keep) as (place, folder):
            from lien.demo import ledger
            from lien.demo.screen import Screen

            screen = Screen(color=color)
            scenes, lines = _play(screen, folder, orders, random.Random(seed))
            if as_json:
                screen.document(lines, scenes, place if keep else None)
            else:
                screen.timeline(scenes)
                screen.ledger(lines)
                screen.verdict(lines, _look_on(place, keep=keep))
            code = 0 if ledger.balances(lines) else 1
    except KeyboardInterrupt:
        click.echo("interrupted: the demo's processes and data are gone", err=True)
        code = _INTERRUPTED
    raise SystemExit(code)


def _play(screen: Screen, folder: Path, orders: int, dice: random.Random) -> tuple[list[Scene], list[Line]]:
    # Only now, as the shop reads its database from the environment when it is imported.
    from lien.demo import ledger, shop, tables
    from lien.demo.crew import Crew
    from lien.demo.story import Broken, Story

    shop.jobs.migrate()
    connection = tables.connect(shop.URL, shop.SCHEMA)
    crew = Crew(folder / "workers.log")
    story = Story(screen, crew, connection, orders, dice)
    try:
        scenes = story.run()
        return scenes, ledger.compute(connection)
    except (_TookTooLong, Broken) as error:
        screen.clear()
        click.echo(crew.last_words(), err=True)
        raise click.ClickException(f"the demo gave up while it waited until {story.waiting_for}: {error}") from None
    finally:
        _ignore_signals()
        screen.clear()
        crew.end()
        connection.close()
        shop.jobs.close()


def _look_on(place: dict[str, str], *, keep: bool) -> str:
    if not keep:
        return "To look at the jobs yourself: lien demo --keep"
    words = " ".join(f"--{name} {value}" for name, value in place.items())
    return f"Look on with: lien jobs list {words}"


@contextmanager
def _place(url: str | None, *, keep: bool) -> Iterator[tuple[dict[str, str], Path]]:
    """A fresh database, named in the environment for this process and its children; and a folder."""
    import lien
    from lien.demo import tables

    folder = Path(tempfile.mkdtemp(prefix="lien-demo-"))
    schema = None if url is None else f"lien_demo_{secrets.token_hex(4)}"
    url = url or tables.sqlite_url(str(folder / "shop.db"))
    os.environ["LIEN_URL"] = url
    os.environ.pop("LIEN_SCHEMA", None)
    place = {"url": mask_secrets(url)}
    if schema is not None:
        place["schema"] = os.environ["LIEN_SCHEMA"] = schema
    made = kept = False
    try:
        if schema is not None:
            with lien.Lien(url).store.translated():
                tables.create_schema(url, schema)
            made = True
        yield place, folder
        kept = keep
    finally:
        _ignore_signals()
        if schema is not None and made and not kept:
            _drop(url, schema)
        if schema is not None or not kept:
            shutil.rmtree(folder, ignore_errors=True)


def _drop(url: str, schema: str) -> None:
    from lien.demo import tables

    try:
        tables.drop_schema(url, schema)
    except Exception as error:  # noqa: BLE001 - whatever it is, it must not hide what came before
        click.echo(f"the schema {schema} could not be dropped: {first_line(error)}", err=True)


@contextmanager
def _signals() -> Iterator[None]:
    """TERM and HUP end the demo as INT does, and after `DEADLINE` an alarm does."""

    def give_up(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the signature of handlers
        raise _TookTooLong(f"not finished after {DEADLINE:g} s")

    endings = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in (*endings, signal.SIGALRM)}
    for number in endings:
        if before[number] is not signal.SIG_IGN:  # nohup, or a shell's background job
            signal.signal(number, signal.default_int_handler)
    signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, DEADLINE)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ignore_signals() -> None:
    """What follows is cleaning up: it takes some seconds at most, and must not be cut short."""
    signal.setitimer(signal.ITIMER_REAL, 0.0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
