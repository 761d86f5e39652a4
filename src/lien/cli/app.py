"""Which app and which database a command works with."""

from __future__ import annotations

import importlib
import os
import sys
import tomllib
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from lien.cli.invocation import Invocation
from lien.drivers.urls import checked_url
from lien.errors import UsageError
from lien.queue import Lien

_KEYS = frozenset({"app", "url", "schema"})
_NOTHING = "no app and no database: give --app module:object or --url, or run `lien init` for an example"


@dataclass(frozen=True, slots=True)
class Found:
    """The app to work with; ``name`` is its ``module:object``, None when there is but a URL."""

    jobs: Lien
    name: str | None


@dataclass(frozen=True, slots=True)
class _Project:
    """``[tool.lien]`` of the nearest pyproject.toml."""

    path: Path | None
    table: dict[str, str]


def database(invocation: Invocation) -> Lien:
    """For commands that need no tasks: ``--url`` alone is enough and imports nothing of the user's.

    Raises:
        UsageError: neither app nor URL is known, or one of them is wrong.
    """
    if invocation.url and not invocation.app:
        return _by_url(invocation, invocation.url, "--url").jobs
    return app_or_url(invocation).jobs


def app_or_url(invocation: Invocation) -> Found:
    """The app if one is configured, else a database without any tasks.

    Raises:
        UsageError: neither app nor URL is known, or one of them is wrong.
    """
    name, folder = _app_name(invocation)
    if name:
        return Found(_bound(invocation, load(name, folder), name), name)
    for url, origin in _urls(invocation):
        return _by_url(invocation, url, origin)
    raise UsageError(_NOTHING)


def app(invocation: Invocation) -> Found:
    """The app; for commands that need its tasks.

    Raises:
        UsageError: no app is known, or it is wrong.
    """
    name, folder = _app_name(invocation)
    if not name:
        raise UsageError(
            "the tasks are needed here: give --app module:object, set LIEN_APP, or write "
            '[tool.lien] app = "module:object" into pyproject.toml'
        )
    return Found(_bound(invocation, load(name, folder), name), name)


def load(name: str, folder: Path | None = None) -> Lien:
    """Import the app. The current directory, then ``folder``, come first on the path.

    Raises:
        UsageError: it cannot be had; the message says which part is wrong.
    """
    module_name, colon, path = name.partition(":")
    if not colon or not all(part.isidentifier() for part in (*module_name.split("."), *path.split("."))):
        raise UsageError(f"app {name!r}: write module:object, as in jobs:jobs")
    for place in (folder, Path.cwd()):
        if place is not None and str(place) not in sys.path:
            sys.path.insert(0, str(place))
    target: Any = _imported(module_name, name)
    for part in path.split("."):
        try:
            target = getattr(target, part)
        except AttributeError:
            there = ", ".join(k for k, v in vars(sys.modules[module_name]).items() if isinstance(v, Lien))
            raise UsageError(
                f"app {name!r}: there is no {part!r} (lien.Lien objects in {module_name}: {there or 'none'})"
            ) from None
    if not isinstance(target, Lien):
        raise UsageError(
            f"app {name!r} is a {type(target).__qualname__}, not a lien.Lien: "
            "name the object whose .task decorates your functions"
        )
    return target


def _imported(module_name: str, name: str) -> Any:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and f"{module_name}.".startswith(f"{error.name}."):
            raise UsageError(
                f"app {name!r}: there is no module {error.name!r} in {Path.cwd()} or on the Python "
                "path: run lien where it is, or set PYTHONPATH"
            ) from None
        raise UsageError(_raised(error, module_name, name)) from error
    except (Exception, SystemExit) as error:
        raise UsageError(_raised(error, module_name, name)) from error


def _raised(error: BaseException, module_name: str, name: str) -> str:
    text = str(error).strip().partition("\n")[0]
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<")]
    where = f" at {frames[-1].filename}:{frames[-1].lineno}" if len(frames) > 1 else ""
    if isinstance(error, SyntaxError):
        where, text = f" at {error.filename}:{error.lineno}", error.msg
    return (
        f"app {name!r}: importing {module_name} raised {type(error).__name__}: {text}{where} (-v shows the traceback)"
    )


def _bound(invocation: Invocation, jobs: Lien, name: str) -> Lien:
    """The app on the database that was asked for: ``--url``, else its own, else the environment's."""
    own = jobs.url
    url, origin = next(
        (
            (url, origin)
            for url, origin in (
                (invocation.url, "--url"),
                (own, f"the URL of app {name!r}"),
                *_urls(invocation),
            )
            if url
        ),
        (None, ""),
    )
    if url is None:
        raise UsageError(
            f"app {name!r} names no database: give --url or set LIEN_URL, or write lien.Lien('postgresql://…')"
        )
    invocation.know(str(url))
    if own and not invocation.url and os.environ.get("LIEN_URL", own) != own:
        click.echo(f"note: app {name!r} names its own database, so LIEN_URL is not used", err=True)
    jobs.rebind(checked_url(url, origin), schema=invocation.schema if jobs.schema is not None else _schema(invocation))
    click.get_current_context().call_on_close(jobs.close)
    return jobs


def _by_url(invocation: Invocation, url: str, origin: str) -> Found:
    invocation.know(url)
    jobs = Lien(checked_url(url, origin), schema=_schema(invocation))
    click.get_current_context().call_on_close(jobs.close)
    return Found(jobs, None)


def _schema(invocation: Invocation) -> str | None:
    return invocation.schema or os.environ.get("LIEN_SCHEMA") or _project().table.get("schema")


def _app_name(invocation: Invocation) -> tuple[str | None, Path | None]:
    if name := invocation.app or os.environ.get("LIEN_APP"):
        return name, None
    if invocation.url and not invocation.app and _project().table.get("app") is None:
        return None, None
    project = _project()
    return project.table.get("app"), project.path.parent if project.path else None


def _urls(invocation: Invocation) -> list[tuple[str, str]]:
    """URLs known without an app, with where they stand, the first one first."""
    if invocation.url:
        return [(invocation.url, "--url")]
    if url := os.environ.get("LIEN_URL"):
        return [(url, "LIEN_URL")]
    if url := _project().table.get("url"):
        return [(url, "[tool.lien] url")]
    return []


def _project() -> _Project:
    here = Path.cwd()
    for folder in (here, *here.parents):
        path = folder / "pyproject.toml"
        if path.is_file():
            return _Project(path, _settings(path))
    return _Project(None, {})


def _settings(path: Path) -> dict[str, str]:
    try:
        table = tomllib.loads(path.read_text("utf-8")).get("tool", {}).get("lien", {})
    except (OSError, ValueError, AttributeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
    if not isinstance(table, dict):
        raise UsageError(f"{path}: tool.lien is not a table")
    for key, value in table.items():
        if key not in _KEYS:
            raise UsageError(f"{path}: [tool.lien] has no {key!r}; it has {', '.join(sorted(_KEYS))}")
        if not isinstance(value, str):
            raise UsageError(f"{path}: [tool.lien] {key} must be a text")
    return table
