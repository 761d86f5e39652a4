"""Exit codes, and what is said: at most three lines, no traceback, no password."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lien.cli import errors
from lien.errors import LienError

CLOSED = "127.0.0.1:1"


def lines(text):
    return text.strip().splitlines()


def unreachable(result):
    assert result.returncode == 3, result.stderr
    assert 1 <= len(lines(result.stderr)) <= 3
    assert "Traceback" not in result.stderr
    assert result.stderr.startswith("error: ")
    return result.stderr


@pytest.mark.parametrize("command", [["migrate"], ["jobs", "list"], ["jobs", "cancel", "1"], ["enqueue", "x"]])
def test_a_closed_port_is_exit_3(cli, command):
    text = unreachable(cli(*command, "--url", f"postgresql://u:pass%40word@{CLOSED}/db"))
    assert f"postgresql://u:***@{CLOSED}/db cannot be reached" in text
    assert "refused" in text
    assert "pass" not in text


def test_worker_with_a_closed_port_is_exit_3(cli):
    unreachable(cli("worker", "--app", "shop:jobs", "--url", f"postgresql://{CLOSED}/db"))


def test_wrong_user_is_exit_3_and_the_password_is_masked(cli, postgres_url):
    place = postgres_url.partition("@")[2]
    text = unreachable(cli("migrate", "--url", f"postgresql://nobody:hunter2@{place}"))
    assert "hunter2" not in text
    assert "nobody" in text


@pytest.mark.parametrize("name", ["missing/lien.db", "notes.txt", "folder", "/proc/lien.db"])
def test_sqlite_that_cannot_be_opened_is_exit_3(cli, folder, name):
    (folder / "notes.txt").write_text("not a database, " * 100)
    (folder / "folder").mkdir()
    text = unreachable(cli("migrate", "--url", f"sqlite:///{name}"))
    assert f"sqlite:///{name} cannot be reached" in text


def test_no_schema_is_exit_4_and_names_the_command(cli, engine_url):
    for command in (["jobs", "list"], ["migrate", "--check"], ["enqueue", "greet"], ["worker", "--app", "shop:jobs"]):
        result = cli(*command, "--url", engine_url)
        assert result.returncode == 4, result.stderr
        assert "lien migrate" in result.stderr


SECRETS = [
    "postgresql://u:se@cret@127.0.0.1:1/db",
    "postgresql://u:se/cret@127.0.0.1:1/db",
    "postgresql://u:se:cret@127.0.0.1:1/db",
    "postgresql://u:se%cret@127.0.0.1:1/db",
    "postgresql://u:se%40cret@127.0.0.1:1/db",
    "postgresql://u:se?cret@127.0.0.1:1/db",
    "postgresql://u:x@se?cret@127.0.0.1:1/db",
    "postgresql://u@127.0.0.1:1/db?password=secret",
    "postgresql://u@127.0.0.1:1/db?password=se@cret",
    "postgresql://u@127.0.0.1:1/db?sslpassword=se%40cret&password=se%26cret",
    "postgresql://u:secret@127.0.0.1:1/db?nonsense=1",
    "postgresql://u:secret@127.0.0.1:port/db",
    "postgresql://u:secret@no.such.host.invalid/db",
    "postgresql://u:se%00cret@127.0.0.1:1/db",
    "postgresql+asyncpg://u:secret@127.0.0.1/db",
    "mysql://u:secret@127.0.0.1/db",
    "sqlite://u:secret@127.0.0.1/db",
    "host=127.0.0.1 port=1 password=secret",
    "host=127.0.0.1 port=1 password = 'a secret\\' cret'",
]


@pytest.mark.parametrize("url", SECRETS)
def test_no_password_is_ever_printed(cli, url):
    for result in (
        cli("migrate", "--url", url),
        cli("jobs", "list", "-v", "--json", env={"LIEN_URL": url}),
    ):
        text = result.stdout + result.stderr
        assert result.returncode in {2, 3}, text
        for secret in ("cret", "se@", "x@"):
            assert secret not in text.replace("secrets", "").replace("secret=", ""), text
        assert "***" in text or result.returncode == 2


def test_a_url_that_would_be_misread_says_what_to_write(cli):
    result = cli("migrate", "--url", "postgresql://u:p@ss@host/db")
    assert result.returncode == 2
    assert result.stderr == (
        "error: --url has an @ too many: if it is part of the password, percent-encode it "
        "(@ is %40, / is %2F, : is %3A, ? is %3F, % is %25)\n"
    )


def test_a_common_dev_password_leaves_the_message_readable(cli):
    text = unreachable(cli("migrate", "--url", f"postgresql://postgres:postgres@{CLOSED}/db"))
    assert f"error: postgresql://postgres:***@{CLOSED}/db cannot be reached" in text


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["jobs", "lst"], "No such command 'lst'"),
        (["jobs", "list", "--limit", "0"], "0 is not in the range 1<=x<=10000"),
        (["jobs", "list", "--limit", str(2**31)], "is not in the range"),
        (["jobs", "list", "--state", "ready"], "'ready' is not one of"),
        (["jobs", "list", "--queue", ""], "queue has 0 characters: give a text of 1 to 200"),
        (["jobs", "list", "--before", "-1"], "'-1' is not a job id"),
        (["jobs", "cancel"], "Missing argument 'ID...'"),
        (["migrate", "--plan", "--check"], "give --plan or --check, not both"),
        (["enqueue", "x", "--at", "2026-12-24T18:00"], "write 2026-12-24T18:00:00Z for UTC"),
        (["enqueue", "x", "--at", "soon"], "'soon' is not a moment: write it as in 2026-12-24T18:00Z"),
        (["enqueue", "x", "--delay", "5 weeks"], "'5 weeks' is not a duration: write 10, 10s, 5m, 2h or 1d"),
        (["enqueue", "x", "--delay", "\u0665"], "is not a duration"),
        (["enqueue", "x", "--delay", "1", "--at", "2026-12-24T18:00Z"], "give --delay or --at, not both"),
        (["enqueue", "x", "{'a': 1}"], "not JSON (Expecting property name"),
        (["enqueue", "x", "7"], "a JSON number is not arguments"),
        (["enqueue", "x", "[7]", "--url", "sqlite:///lien.db"], "without an app the arguments must be a JSON object"),
        (["enqueue", "x", '{"a": 1, "a": 2}'], "the name 'a' twice in one object"),
        (["enqueue", "x", "[" * 100_000], "not JSON"),
        (["enqueue", "x", '{"a": NaN}', "--url", "sqlite:///lien.db"], "a"),
        (["enqueue", "x", "--priority", "urgent", "--url", "sqlite:///lien.db"], "priority is 'urgent': give one of"),
        (["worker"], "the tasks are needed here: give --app module:object"),
        (["worker", "-c", "0"], "concurrency is 0: give an integer from 1 to 10000"),
        (["worker", "--lease", "0"], "lease is 0.0: give seconds from 0.3"),
        (["worker", "-q", "a,,b"], "queue has 0 characters"),
        (["jobs", "list"], "no app and no database: give --app module:object or --url"),
        (["jobs", "list", "--url", ""], "no app and no database"),
    ],
)
def test_bad_usage_is_exit_2_with_one_clear_line(usage, args, message):
    result = usage(*args)
    assert result.returncode == 2, result.stderr
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert len(lines(result.stderr)) <= 3
    assert result.stdout == ""


@pytest.mark.parametrize("word", ["0", "-1", str(2**63), "abc", "١٢", "1.0", "+1", "1_0", "", " 1", "0x1"])
@pytest.mark.parametrize("command", ["show", "cancel", "retry"])
def test_odd_ids_are_exit_2(usage, command, word):
    result = usage("jobs", command, word)
    assert result.returncode == 2
    assert f"{word!r} is not a job id: give an integer from 1 to 9223372036854775807" in result.stderr


def test_a_misspelt_option_is_not_taken_for_an_id(usage):
    assert re.search("No such option.*--jsn", usage("jobs", "show", "--jsn").stderr)


def test_errors_are_json_on_stdout_too(cli):
    for args, code, name in (
        (["jobs", "list", "--url", f"postgresql://{CLOSED}/db"], 3, "DatabaseUnavailable"),
        (["jobs", "list", "--limit", "x"], 2, "BadParameter"),
        (["nonsense"], 2, "NoSuchCommand"),
        (["jobs", "show", "1", "--url", "sqlite:///empty.db"], 4, "SchemaError"),
    ):
        result = cli(*args, "--json")
        assert result.returncode == code
        error = json.loads(result.stdout)["error"]
        assert error["code"] == code
        assert error["type"] in {name, "UsageError"}
        assert error["message"] in result.stderr


def test_an_unforeseen_error_is_one_line_and_exit_1(cli, folder):
    (folder / "evil.py").write_text(
        "import lien\nclass Evil(lien.Lien):\n    def list(self, filter=None):\n"
        "        raise ZeroDivisionError('by \\x1b[0m')\n"
        "jobs = Evil('sqlite:///x.db')\n"
    )
    result = cli("jobs", "list", "--app", "evil:jobs")
    assert result.returncode == 1
    assert result.stderr == "error: ZeroDivisionError: by \\x1b[0m\n(run with -v for the traceback)\n"
    assert "Traceback" in cli("jobs", "list", "--app", "evil:jobs", "-v").stderr


def test_ctrl_c_is_exit_130(cli, folder):
    (folder / "slow.py").write_text(
        "import lien\nclass Slow(lien.Lien):\n    def list(self, filter=None):\n        raise KeyboardInterrupt\n"
        "jobs = Slow('sqlite:///x.db')\n"
    )
    result = cli("jobs", "list", "--app", "slow:jobs")
    assert result.returncode == 130
    assert result.stderr.strip() == "interrupted"


def test_a_reader_that_goes_away_is_quiet(at, folder, engine_url):
    at("enqueue", "greet", '{"name": "x"}')
    process = subprocess.Popen(
        [sys.executable, "-m", "lien", "jobs", "list", "--url", engine_url],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    process.stdout.close()
    noise = process.stderr.read()
    process.stderr.close()
    assert process.wait(30) == 1
    assert noise == b""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_is_no_success(at, folder, engine_url):
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "lien", "jobs", "list", "--json", "--url", engine_url],
            cwd=folder,
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert done.returncode == 1


def test_every_error_of_lien_has_an_exit_code_that_is_documented():
    pending = [LienError]
    while pending:
        cls = pending.pop()
        pending += cls.__subclasses__()
        assert errors.exit_code(cls("x")) in errors.MEANINGS
