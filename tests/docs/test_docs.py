"""The documentation: its examples run, its links lead somewhere, and the tests that it names exist."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import fields
from pathlib import Path

import pytest

import lien
from lien.cli import errors
from lien.errors import LienError
from lien.task import Options
from lien.worker import Settings
from tests.servers import Databases

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")


def run_pages(*arguments: str, url: str | None) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ)
    if url is not None:
        environment["LIEN_TEST_PG_URL"] = url
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


@pytest.mark.timeout(300)
def test_every_example_runs(postgres_server: Databases):
    done = run_pages("docs", "README.md", url=postgres_server.admin_url)
    assert done.returncode == 0, done.stdout[-8000:]
    assert "skipped" not in done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path):
    for target in _LINK.findall(page.read_text("utf-8")):
        if "://" in target:
            continue
        name, _, part = target.partition("#")
        linked = page.parent / name if name else page
        assert linked.exists(), f"{page.relative_to(ROOT)} links to {target}"
        if part:
            assert part in anchors(linked), f"{page.relative_to(ROOT)} links to {target}"


def anchors(page: Path) -> set[str]:
    heads = re.findall(r"(?m)^#+ (.+)$", page.read_text("utf-8"))
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_tests_that_are_named_exist(page: Path):
    for file, test in _TEST.findall(page.read_text("utf-8")):
        assert (ROOT / file).exists(), f"{page.relative_to(ROOT)} names {file}"
        if test:
            assert re.search(rf"def {test}\b", (ROOT / file).read_text("utf-8")), f"there is no {file}::{test}"


def test_every_page_can_be_found_from_the_index():
    seen: set[Path] = set()
    pending = [ROOT / "docs" / "index.md"]
    while pending:
        page = pending.pop().resolve()
        if page in seen or page.suffix != ".md" or not page.exists():
            continue
        seen.add(page)
        pending += [page.parent / target.partition("#")[0] for target in _LINK.findall(page.read_text("utf-8"))]
    docs = {page for page in PAGES if "docs" in page.relative_to(ROOT).parts and "decisions" not in page.parts}
    assert docs <= seen, f"no way to {sorted(str(page.relative_to(ROOT)) for page in docs - seen)}"


def text(name: str) -> str:
    return (ROOT / "docs" / "reference" / name).read_text("utf-8")


@pytest.mark.parametrize("name", lien.__all__)
def test_every_public_name_is_in_the_reference(name: str):
    assert f"`{name}" in text("api.md") + text("errors.md")


def test_every_error_has_its_exit_code():
    rows = dict(re.findall(r"(?m)^\| `(\w+)` .*\| (\d+) \|$", text("errors.md")))
    pending = LienError.__subclasses__()
    while pending:
        cls = pending.pop()
        pending += cls.__subclasses__()
        assert int(rows[cls.__name__]) == errors.exit_code(cls("x")), cls


def test_every_setting_is_in_the_reference():
    for field in fields(Settings):
        assert f"| `{field.name}` |" in text("settings.md").partition("## Worker")[2]
    for field in fields(Options):
        assert f"`{field.name}`" in text("settings.md")


def test_every_column_of_the_view_is_in_the_reference(sqlite_url: str):
    with closing(lien.Lien(sqlite_url)) as jobs:
        jobs.migrate()
        with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))) as connection:
            columns = [row[0] for row in connection.execute("SELECT * FROM lien_jobs").description]
    assert [name for name in columns if f"`{name}`" not in text("tables.md")] == []
