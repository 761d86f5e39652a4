"""Which app and which database: options, environment, pyproject.toml, and what is said when they are wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest

from lien.cli import errors
from lien.cli.root import root


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("shop", "app 'shop': write module:object, as in jobs:jobs"),
        ("shop:", "write module:object"),
        ("shop.py:jobs", "there is no module 'shop.py'"),
        ("shopp:jobs", "app 'shopp:jobs': there is no module 'shopp' in "),
        ("shop:job", "app 'shop:job': there is no 'job' (lien.Lien objects in shop: jobs)"),
        ("shop:greet", "app 'shop:greet' is a Task, not a lien.Lien: "),
        ("raises:jobs", "app 'raises:jobs': importing raises raised ZeroDivisionError: division by zero at "),
        ("exits:jobs", "importing exits raised SystemExit: 3"),
        ("needs:jobs", "importing needs raised ModuleNotFoundError: No module named 'no_such_thing'"),
        ("broken:jobs", "importing broken raised SyntaxError"),
        ("empty:jobs", "app 'empty:jobs' has no tasks: import the modules"),
    ],
)
def test_a_wrong_app_is_exit_2_with_the_fix(cli, folder, sqlite_url, name, message):
    (folder / "raises.py").write_text("1 / 0\n")
    (folder / "exits.py").write_text("raise SystemExit(3)\n")
    (folder / "needs.py").write_text("import no_such_thing\n")
    (folder / "broken.py").write_text("def (\n")
    (folder / "empty.py").write_text("import lien\njobs = lien.Lien()\n")
    result = cli("worker", "--app", name, "--url", sqlite_url)
    assert result.returncode == 2
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_pyproject_gives_app_and_url_also_from_a_folder_below(cli, folder, sqlite_url):
    (folder / "pyproject.toml").write_text(f'[tool.lien]\napp = "shop:jobs"\nurl = "{sqlite_url}"\n')
    assert cli("migrate").returncode == 0
    assert cli("enqueue", "greet", '{"name": "x"}').stdout == "1\n"


def test_the_url_option_stands_over_all(cli, folder, sqlite_url):
    (folder / "own.py").write_text("import lien\njobs = lien.Lien('sqlite:///own.db')\n@jobs.task\ndef f(): pass\n")
    assert "sqlite:///own.db" in cli("migrate", "--app", "own:jobs").stderr
    noted = cli("migrate", "--app", "own:jobs", env={"LIEN_URL": sqlite_url})
    assert "sqlite:///own.db" in noted.stderr
    assert "LIEN_URL is not used" in noted.stderr
    assert sqlite_url in cli("migrate", "--app", "own:jobs", "--url", sqlite_url).stderr


def test_a_url_alone_imports_no_app(cli, folder, sqlite_url):
    (folder / "pyproject.toml").write_text('[tool.lien]\napp = "no_such:jobs"\n')
    assert cli("migrate", "--url", sqlite_url).returncode == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[tool.lien\n", "cannot be read"),
        ("[tool]\nlien = 3\n", "tool.lien is not a table"),
        ('[tool.lien]\nap = "x:y"\n', "[tool.lien] has no 'ap'; it has app, schema, url"),
        ("[tool.lien]\napp = 3\n", "[tool.lien] app must be a text"),
    ],
)
def test_a_wrong_pyproject_is_exit_2(cli, folder, text, message):
    (folder / "pyproject.toml").write_text(text)
    result = cli("jobs", "list")
    assert result.returncode == 2
    assert message in result.stderr


def test_schema_option_and_environment(cli, engine_url):
    assert cli("migrate", "--url", engine_url, "--schema", "other_").returncode == 0
    assert cli("jobs", "list", "--url", engine_url).returncode == 4
    env = {"LIEN_SCHEMA": "other_", "LIEN_URL": engine_url}
    result = cli("jobs", "list", env=env)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "no jobs\n")


def test_help_is_fast_and_imports_no_driver(cli):
    code = (
        "import sys\nsys.argv = ['lien', '--help']\nfrom lien.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "assert not {'psycopg', 'lien.worker.worker', 'lien.cli.jobs'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for word in ("migrate", "worker", "enqueue", "jobs", "130  interrupted"):
        assert word in done.stdout


def test_no_command_shows_the_help_and_is_exit_2(cli):
    for args in ((), ("jobs",)):
        result = cli(*args)
        assert result.returncode == 2
        assert "Usage: lien" in result.stderr
        assert result.stdout == ""


def test_init_writes_an_example_that_runs(cli, folder):
    result = cli("init")
    assert result.returncode == 0
    assert result.stdout == "jobs.py\npyproject.toml\n"
    assert cli("migrate").returncode == 0
    assert cli("enqueue", "add", '{"a": 1, "b": 2}').stdout == "1\n"
    assert cli("worker", "--burst").returncode == 0
    assert "succeeded" in cli("jobs", "list").stdout
    again = cli("init")
    assert again.returncode == 5
    assert again.stderr == "error: jobs.py is there already, and is left as it is\n"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('[project]\nname = "x"', '[project]\nname = "x"\n\n[tool.lien]\napp = "jobs:jobs"\n'),
        ('[tool.lien]\nurl = "sqlite:///a.db"\n', '[tool.lien]\napp = "jobs:jobs"\nurl = "sqlite:///a.db"\n'),
        ("[tool.lien]", '[tool.lien]\napp = "jobs:jobs"\n'),
        ('[tool.lien]\napp = "a:b"\n', '[tool.lien]\napp = "a:b"\n'),
        ("tool.lien = {}\n", "tool.lien = {}\n"),
        ("[x]\r\ny = 1\r\n", '[x]\r\ny = 1\r\n\r\n[tool.lien]\r\napp = "jobs:jobs"\r\n'),
    ],
)
def test_init_adds_to_pyproject_and_overwrites_nothing(cli, folder, old, new):
    (folder / "pyproject.toml").write_bytes(old.encode())
    assert cli("init").returncode == 0
    assert (folder / "pyproject.toml").read_bytes().decode() == new


def test_init_refuses_a_pyproject_that_it_cannot_read(cli, folder):
    (folder / "pyproject.toml").write_text("[broken\n")
    assert cli("init").returncode == 2
    assert not (folder / "jobs.py").exists()


def test_the_reference_page_has_every_command_option_and_exit_code():
    page = (Path(__file__).parents[2] / "docs" / "reference" / "cli.md").read_text()
    for code, meaning in errors.MEANINGS.items():
        assert f"| {int(code)} | " in page
        assert meaning.removeprefix("worker: ") in page
    pending = [root]
    while pending:
        command = pending.pop()
        if isinstance(command, click.Group):
            context = click.Context(command)
            names = [name for name in command.list_commands(context) if name != "demo"]
            pending += [command.get_command(context, name) for name in names]
        for parameter in command.params:
            words = [word for word in parameter.opts if word.startswith("--") and word != "--version"]
            words += [parameter.envvar] if parameter.envvar else []
            for word in words:
                assert f"{word}" in page, (command.name, word)
