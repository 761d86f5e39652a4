"""Every command on every engine: what it does, what it prints, that its JSON parses."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from uuid import uuid4

import pytest

import lien
from lien.model import ClaimRequest, Lane

from .conftest import environment


def data(result, code=0):
    assert result.returncode == code, result.stderr
    return json.loads(result.stdout)


def test_migrate_plan_check_apply(cli, engine_url):
    on = ("--url", engine_url)
    plan = data(cli("migrate", "--plan", "--json", *on))["plan"]
    assert {"migration", "title", "sql"} == set(plan[0])
    text = cli("migrate", "--plan", *on)
    assert "CREATE TABLE" in text.stdout
    assert "-- 0001_jobs: " in text.stdout
    assert cli("migrate", "--check", *on).returncode == 4
    assert data(cli("migrate", "--json", *on))["applied"] == sorted({step["migration"] for step in plan})
    assert data(cli("migrate", "--json", *on)) == {"applied": []}
    assert data(cli("migrate", "--check", "--json", *on)) == {"pending": []}
    assert cli("migrate", "--plan", *on).stdout == ""


def test_enqueue_is_checked_against_the_app(at):
    assert at("enqueue", "greet", '{"name": "x"}').stdout == "1\n"
    assert data(at("enqueue", "add", "[1, 2]", "--json")) == {"id": "2", "created": True}
    assert at("enqueue", "greet", "-", given='{"name": "stdin"}').returncode == 0
    unknown = at("enqueue", "gret")
    assert unknown.returncode == 2
    assert "no task 'gret' is registered here (registered: add, breaks, dies, greet, stubborn)" in unknown.stderr
    wrong = at("enqueue", "greet", '{"nam": "x"}')
    assert wrong.returncode == 2
    assert "task greet(name: str)" in wrong.stderr
    assert data(at("jobs", "list", "--json"))["jobs"][0]["id"] == "3"


def test_enqueue_options(at):
    assert at("enqueue", "greet", '{"name": "a"}', "--delay", "5m", "--priority", "high").returncode == 0
    at("enqueue", "greet", '{"name": "b"}', "--at", "2099-12-24T18:00+01:00", "--queue", "mail", "--priority", "3")
    first = data(at("enqueue", "greet", '{"name": "c"}', "--unique", "k", "--json"))
    second = at("enqueue", "greet", '{"name": "c"}', "--unique", "k", "--json")
    assert data(second) == {"id": first["id"], "created": False}
    assert "unique key already" in second.stderr
    jobs = {job["args"]["name"]: job for job in data(at("jobs", "list", "--json"))["jobs"]}
    assert (jobs["a"]["priority"], jobs["a"]["state"]) == (1, "scheduled")
    assert (jobs["b"]["available_at"], jobs["b"]["queue"]) == ("2099-12-24T17:00:00Z", "mail")
    text = at("jobs", "list").stdout
    assert re.search(r"due in [45](\.\d)? m", text)


def test_enqueue_by_url_alone_takes_any_task(cli, engine_url):
    on = ("--url", engine_url)
    cli("migrate", *on)
    result = cli("enqueue", "anything at all", '{"self": 1, "name": 2, "a b": [1.5, null]}', *on)
    assert result.stdout == "1\n"
    assert result.stderr.startswith("note: no app given, so task 'anything at all'")
    assert data(cli("jobs", "show", "1", "--json", *on))["args"] == {"self": 1, "name": 2, "a b": [1.5, None]}


def test_big_integers_and_ids_survive_json(at, engine_url):
    at("enqueue", "greet", '{"name": 123456789012345678901234567890}')
    job = data(at("jobs", "show", "1", "--json"))
    assert job["args"]["name"] == 123456789012345678901234567890
    assert (job["id"], job["fence"], job["origin"]) == ("1", "0", None)


def test_list_of_nothing(at):
    result = at("jobs", "list")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "no jobs\n")
    assert at("jobs", "list", "--state", "failed").stderr == "no such jobs\n"
    assert data(at("jobs", "list", "--json")) == {"jobs": [], "before": None}


def test_list_filters_and_pages(at, engine_url):
    jobs = lien.Lien(engine_url)
    task = jobs.task(name="t")(lambda: None)
    other = jobs.task(name="日本 task", queue="q")(lambda: None)
    ids = [str(made.id) for made in reversed([*task.enqueue_many([{}] * 5), other.enqueue()])]
    jobs.close()
    page = data(at("jobs", "list", "--limit", "3", "--json"))
    assert [job["id"] for job in page["jobs"]] == ids[:3]
    assert page["before"] == ids[2]
    page = data(at("jobs", "list", "--limit", "3", "--before", ids[2], "--json"))
    assert [job["id"] for job in page["jobs"]] == ids[3:]
    assert [j["id"] for j in data(at("jobs", "list", "--queue", "q", "--json"))["jobs"]] == ids[:1]
    assert len(data(at("jobs", "list", "--task", "t", "--state", "runnable", "--json"))["jobs"]) == 5
    text = at("jobs", "list").stdout.splitlines()
    assert text[0].split() == ["id", "task", "state", "attempt", "when", "error"]
    assert len(text) == 7


def test_global_options_stand_anywhere(at, engine_url, cli):
    for args in (
        ["--json", "jobs", "list"],
        ["jobs", "--json", "list"],
        ["jobs", "list", "--json"],
        ["--url", "sqlite:////nowhere/x.db", "jobs", "list", "--url", engine_url, "--json"],
    ):
        assert data(at(*args)) == {"jobs": [], "before": None}


def test_cancel_and_retry_go_on_after_a_refusal(at):
    for _ in range(2):
        at("enqueue", "greet", '{"name": "x"}')
    result = at("jobs", "cancel", "1", "99", "2", "1")
    assert result.returncode == 5
    assert result.stdout == "job 1 cancelled\njob 2 cancelled\n"
    assert result.stderr == "there is no job 99\n"
    result = at("jobs", "retry", "1", "99", "1", "--json")
    done, refused = data(result, 5)["jobs"]
    assert (done["id"], done["done"], done["copy"]) == ("1", True, "3")
    assert (refused["id"], refused["done"], refused["error"]["type"]) == ("99", False, "JobNotFound")
    refused = at("jobs", "cancel", "2")
    assert (refused.returncode, refused.stdout) == (5, "")
    assert refused.stderr == "job 2 is already failed (cancelled): nothing to cancel\n"
    assert at("jobs", "show", "99").returncode == 5
    assert "copy of" in at("jobs", "show", "3").stdout


def test_stored_text_never_reaches_the_terminal_raw(at, engine_url):
    jobs = lien.Lien(engine_url)
    jobs.task(name="t\x1b]0;owned\x07\u202eevil\n2")(lambda **_: None).enqueue(a="\x1b[2J\x9b31m\u2028")
    jobs.close()
    for args in (["jobs", "list"], ["jobs", "show", "1"], ["jobs", "show", "1", "--json"], ["jobs", "list", "--json"]):
        result = at(*args)
        assert result.returncode == 0
        for bad in "\x1b\x07\x9b\u202e\u2028":
            assert bad not in result.stdout
    assert "t\\x1b]0;owned\\x07\\u202eevil\\n2" in at("jobs", "list").stdout


def test_worker_runs_and_tells(at):
    at("enqueue", "greet", '{"name": "x"}')
    at("enqueue", "add", "[1, 2]")
    at("enqueue", "breaks")
    at("enqueue", "dies")
    result = at("worker", "--burst", "-c", "2")
    assert result.returncode == 0, result.stderr
    assert result.stdout == ""
    text = result.stderr
    assert "shop:jobs" in text
    assert "default, sums" in text
    assert "✓ greet 1  " in text
    assert "(attempt 1/20)" in text
    assert "✓ add 2  " in text
    assert "(attempt 1/3)" in text
    assert "failed, again in " in text
    assert "ValueError: bad \\x1b[31mx" in text
    assert "✗ dies 4  " in text
    assert "\x1b" not in text
    shown = at("jobs", "show", "4")
    assert "failed (exhausted)" in shown.stdout
    assert "RuntimeError: never again" in shown.stdout
    assert "lines: -v shows it" in shown.stdout
    assert "Traceback" not in shown.stdout
    assert "│ Traceback" in at("jobs", "show", "4", "-v").stdout
    job = data(at("jobs", "show", "1", "--json"))
    assert job["result"] == "Hello, x!"
    assert job["attempts"][0]["outcome"] == "succeeded"


def test_worker_json_is_one_object_a_line(at):
    at("enqueue", "greet", '{"name": "x"}')
    result = at("worker", "--burst", "--json")
    events = [json.loads(line) for line in result.stdout.splitlines()]
    ended = next(event for event in events if event["what"] == "succeeded")
    assert (ended["job_id"], ended["task"], ended["attempt"]) == ("1", "greet", 1)
    assert [event["what"] for event in events][-1] == "stopped"


def test_worker_leaves_other_queues_alone(at):
    at("enqueue", "greet", '{"name": "x"}')
    at("enqueue", "add", "[1, 2]")
    result = at("worker", "--burst", "-q", "sums,sums")
    assert "sums (not: default)" in result.stderr
    states = {job["id"]: job["state"] for job in data(at("jobs", "list", "--json"))["jobs"]}
    assert states == {"1": "runnable", "2": "succeeded"}


def test_worker_settings_come_from_the_environment(cli, engine_url):
    env = {"LIEN_URL": engine_url, "LIEN_APP": "shop:jobs", "LIEN_WORKER_CONCURRENCY": "3", "LIEN_WORKER_LEASE": "2m"}
    env |= {"LIEN_WORKER_BURST": "1", "LIEN_WORKER_QUEUES": "a,b", "LIEN_WORKER_IDENTITY": "me"}
    cli("migrate", env=env)
    result = cli("worker", env=env)
    assert result.returncode == 0
    for row in ("slots     3", "lease     2 m", "queues    a, b", "worker    me"):
        assert row in result.stderr


@pytest.mark.parametrize(("task", "code"), [(None, 0), ("stubborn", 7)])
def test_worker_drains_on_term(at, folder, engine_url, task, code):
    if task:
        at("enqueue", task)
    env = environment(LIEN_URL=engine_url, LIEN_APP="shop:jobs")
    command = [sys.executable, "-m", "lien", "worker", "--json", "--grace", "100ms", "--cancel-grace", "0.1"]
    process = subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE, text=True)
    try:
        for line in process.stdout:
            if json.loads(line)["what"] == ("inside" if task else "ready"):
                process.send_signal(signal.SIGTERM)
        assert process.wait(30) == code
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    assert data(at("jobs", "list", "--state", "claimed", "--json"))["jobs"] == []


def test_claimed_with_an_expired_lease_is_said_so(at, engine_url):
    jobs = lien.Lien(engine_url)
    jobs.task(name="t")(lambda: None).enqueue()
    wish = ClaimRequest(
        lanes=(Lane("default", 2, None),), limit=1, tasks=("t",), token=uuid4(), worker="me\x1b", lease=-5.0
    )
    assert jobs.store.run(jobs.store.engine.cycle, [], wish, None).claims
    jobs.close()
    text = at("jobs", "show", "1").stdout
    assert "claim        by me\\x1b for " in text
    assert "lease expired " in text
    assert " ago: any worker may take it back" in text
    assert "lease expired" in at("jobs", "list").stdout
    assert at("jobs", "cancel", "1").stdout == "job 1 is running: asked to stop\n"
    assert "requested" in at("jobs", "show", "1").stdout
