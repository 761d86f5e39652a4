"""``lien init``: a small example that runs."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import click

from lien.cli.errors import Refused
from lien.cli.invocation import Invocation
from lien.cli.options import Command
from lien.errors import UsageError

_EXAMPLE = '''\
"""Jobs of this project. `lien worker` runs them."""

import lien

jobs = lien.Lien("sqlite:///jobs.db")  # or postgresql://localhost/mydb


@jobs.task
async def greet(name: str) -> str:
    """An async task; its result is kept with the job."""
    return f"Hello, {name}!"


@jobs.task(queue="reports", timeout=60, max_failures=3)
def add(ctx: lien.Context, a: int, b: int) -> int:
    """A plain function runs in a thread. The context is there if you ask for it."""
    ctx.check()
    return a + b


if __name__ == "__main__":
    print("job", greet.enqueue("world").id)
    print("job", add.enqueue(a=1, b=2).id)
'''
_APP = "jobs:jobs"
_NEXT = """
Next:
  lien migrate          create the tables
  python jobs.py        enqueue two jobs
  lien worker --burst   run them"""


@click.command(cls=Command)
@click.pass_obj
def init(invocation: Invocation) -> None:
    """Write jobs.py and [tool.lien] in pyproject.toml into this folder; overwrites nothing."""
    module, project = Path("jobs.py"), Path("pyproject.toml")
    for taken in (module, Path("jobs") / "__init__.py"):
        if taken.exists() or taken.is_symlink():
            raise Refused(f"{taken} is there already, and is left as it is")
    text, note = _with_app(project)
    with module.open("x", encoding="utf-8") as file:
        file.write(_EXAMPLE)
    written = [str(module)]
    if text is not None:
        with project.open("w", encoding="utf-8", newline="") as file:
            file.write(text)
        written.append(str(project))
    if invocation.json:
        click.echo(json.dumps({"written": written}))
    else:
        for name in written:
            click.echo(name)
    click.echo(f"{note}{_NEXT}", err=True)


def _with_app(project: Path) -> tuple[str | None, str]:
    """The text of pyproject.toml with the app in it (None: leave it), and what to say."""
    try:
        old = project.read_bytes().decode("utf-8") if project.exists() else ""
        table = tomllib.loads(old.replace("\r\n", "\n")).get("tool", {}).get("lien", {})
    except ValueError as error:
        raise UsageError(f"pyproject.toml cannot be read: {error}") from None
    if "app" in table:
        if table["app"] == _APP:
            return None, ""
        return None, f"note: pyproject.toml keeps its app; for the example use --app {_APP}\n"
    end = "\r\n" if "\r\n" in old else "\n"
    row = f'app = "{_APP}"{end}'
    header = re.search(r"(?m)^\[tool\.lien\][ \t]*(?:#[^\r\n]*)?(?=\r?$)", old)
    if header is not None:
        new = f"{old[: header.end()]}{end}{row.rstrip()}{old[header.end() :] or end}"
    else:
        gap = "" if not old else end if old.endswith("\n") else end * 2
        new = f"{old}{gap}[tool.lien]{end}{row}"
    try:
        ok = tomllib.loads(new.replace("\r\n", "\n"))["tool"]["lien"]["app"] == _APP
    except (ValueError, LookupError, TypeError):
        ok = False
    if not ok:
        return None, f'note: write app = "{_APP}" into tool.lien of pyproject.toml yourself\n'
    return new, ""
