"""The check of the SQL finds nothing in the tree, and finds every guard that is taken out of it."""

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lien.machine import TABLE

sys.path.append(str(Path(__file__).parents[2] / "tools"))
check_sql = importlib.import_module("check_sql")

TREE: dict[str, dict[str, str]] = check_sql.engine_files()

# What a guard looks like in the text. Replacing one by `1 = 1` is a mutant.
STATE = r"(?<!SET )\b(?:\w\.)?state(?: \|\| '')? (?:= '\w+'|IN \('[^)]*\))"
GUARDS = {
    "state": STATE,
    "claim_token": (
        r"\b(?:\w\.)?claim_token = "
        r"(?:CAST\(:token AS uuid\)|ANY\(CAST\([^)]*\)\)|\w\.token|:token)"
    ),
    "lease_expires_at": r"\b(?:\w\.)?lease_expires_at <=? (?:\(SELECT clock_timestamp\(\)\)|:now)",
    "available_at": r"\b(?:\w\.)?available_at <= (?:\(SELECT clock_timestamp\(\)\)|:now)",
    "expires_at": r"(?<!lease_)\bexpires_at <=? (?:\(SELECT clock_timestamp\(\)\)|:now)",
    "task": (
        r"\b(?:\w\.)?task = ANY\(CAST\([^)]*\)\)|\bknown(?=\))"
        r"|task (?:NOT )?IN \(SELECT value FROM json_each\(:tasks\)\)"
    ),
    "fence": r"\bfence < (?:\(SELECT fence FROM \w+\)|:fence)",
}
EQUIVALENT = {
    # Rows that are locked already are only sorted here; the write behind it has the guard as well.
    ("postgres", "cancel", "state", 0),
    ("postgres", "cancel", "state", 2),
    # When the next job falls due is only looked at.
    ("postgres", "promote", "state", 2),
    # The pick has locked the rows after this very test; what follows repeats it for the reader.
    ("postgres", "reap", "lease_expires_at", 1),
    ("postgres", "reap", "lease_expires_at", 2),
    ("postgres", "unpark", "task", 0),
    ("postgres", "unpark", "task", 1),
    # The job copied is read from the history.
    ("postgres", "copy_failed", "state", 0),
    ("sqlite", "copy_failed", "state", 0),
    # One writer at a time: what was picked in the same statement is still so.
    ("sqlite", "promote", "available_at", 1),
    ("sqlite", "unpark", "task", 0),
    ("sqlite", "unpark", "task", 1),
}


def statements() -> Iterator[tuple[str, str, str, str]]:
    """Engine, file, name and text of every statement that makes a transition or picks for one."""
    for engine, files in TREE.items():
        for file, text in files.items():
            for body in re.split(r"(?m)^(?=-- name: )", text)[1:]:
                name = body.splitlines()[0].removeprefix("-- name: ")
                if "-- transition: " in body or name.endswith("_pick"):
                    yield engine, file, name, body


def mutants() -> Iterator[Any]:
    for engine, file, name, body in statements():
        for guard, pattern in GUARDS.items():
            if guard == "claim_token" and name.startswith("claim"):
                continue  # there the token is written, not tested
            for i, found in enumerate(re.finditer(pattern, body)):
                mutant = body[: found.start()] + "1 = 1" + body[found.end() :]
                equivalent = (engine, name, guard, i) in EQUIVALENT
                yield pytest.param(engine, file, name, body, mutant, equivalent, id=f"{engine}-{name}-{guard}-{i}")


MUTANTS = list(mutants())


def problems_with(engine: str, file: str, old: str, new: str) -> list[str]:
    """What the check says of an engine with one text replaced."""
    text = TREE[engine][file]
    assert text.count(old) == 1, f"{old!r} is not once in {engine}/{file}"
    assert old != new
    said: list[str] = check_sql.check({engine: TREE[engine] | {file: text.replace(old, new)}})
    return said


def statement(engine: str, name: str) -> tuple[str, str]:
    """File and text of a statement, whether it makes a transition or not."""
    for file, text in TREE[engine].items():
        for body in re.split(r"(?m)^(?=-- name: )", text)[1:]:
            if body.startswith(f"-- name: {name}\n"):
                return file, body
    raise LookupError(name)


def changed(engine: str, name: str, old: str, new: str) -> list[str]:
    """What the check says when one place of one statement is changed."""
    file, body = statement(engine, name)
    assert body.count(old) == 1, f"{old!r} is {body.count(old)} times in {name}"
    said = problems_with(engine, file, body, body.replace(old, new))
    return [p.removeprefix(f"{engine}/{file}: ") for p in said]


def test_the_tree_is_clean() -> None:
    assert check_sql.check(TREE) == []
    assert list(check_sql.schema_problems(check_sql.engine_files("schema"))) == []
    assert list(check_sql.python_problems(check_sql.python_files())) == []


def test_nothing_is_printed_when_all_is_well(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    postgres = {"": {"postgres": TREE["postgres"]}, "schema": {}}
    monkeypatch.setattr(check_sql, "engine_files", lambda folder="": postgres[folder])
    monkeypatch.setattr(check_sql, "python_files", dict)
    assert check_sql.main() == 0
    assert capsys.readouterr().out == ""
    postgres[""]["other"] = {}
    assert check_sql.main() == 1
    assert capsys.readouterr().out == "other: there are no .sql files\n"


@pytest.mark.parametrize(("engine", "file", "name", "body", "mutant", "equivalent"), MUTANTS)
def test_a_guard_taken_out_is_missed(
    engine: str, file: str, name: str, body: str, mutant: str, equivalent: bool
) -> None:
    said = problems_with(engine, file, body, mutant)
    named = [p for p in said if p.startswith(f"{engine}/{file}: {name}: ")]
    assert bool(named) is not equivalent, said


@pytest.mark.parametrize("guard", GUARDS)
@pytest.mark.parametrize("engine", TREE)
def test_every_guard_has_mutants(engine: str, guard: str) -> None:
    names = {str(mutant.id) for mutant in MUTANTS}
    assert any(name.startswith(f"{engine}-") and f"-{guard}-" in name for name in names)


def test_every_equivalent_mutant_is_still_one() -> None:
    made = {f"{engine}-{name}-{guard}-{i}" for engine, name, guard, i in EQUIVALENT}
    assert made <= {str(mutant.id) for mutant in MUTANTS}


PICKED = "WHERE id = ANY(ARRAY(SELECT id FROM pick))"


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        (
            "promote",
            "SET state = 'runnable'",
            "SET state = 'claimed'",
            "update of lien_job lands in claimed, but promote ends in runnable",
        ),
        (
            "unpark",
            "SET state = 'runnable'",
            "SET state = 'succeeded'",
            "update of lien_job lands in succeeded, but unpark ends in runnable",
        ),
        (
            "succeed",
            "priority, 'succeeded', queue",
            "priority, 'failed', queue",
            "insert of lien_history lands in failed, but succeed ends in succeeded",
        ),
        (
            "succeed",
            "priority, 'succeeded', queue",
            "priority, :state, queue",
            "insert of lien_history lands in ?, but succeed ends in succeeded",
        ),
        (
            "enqueue",
            "THEN 'runnable' ELSE 'scheduled' END",
            "THEN 'claimed' ELSE 'scheduled' END",
            ("insert of lien_job lands in claimed, scheduled, but enqueue ends in runnable, scheduled"),
        ),
        (
            "expire",
            "state || '' IN ('scheduled', 'runnable')",
            "state || '' IN ('scheduled', 'runnable', 'claimed')",
            ("delete of lien_job as expire starts from claimed, runnable, scheduled, table says runnable, scheduled"),
        ),
        (
            "unpark",
            "FROM pick)) AND state || '' = 'scheduled'",
            "FROM pick)) AND (state || '' = 'scheduled' OR attempt = 0)",
            "update of lien_job as unpark starts from any state, table says scheduled",
        ),
        (
            "promote",
            "WHERE state = 'scheduled' AND available_at <=",
            "WHERE state IN ('scheduled', 'runnable') AND available_at <=",
            "picks rows in runnable, scheduled, table says scheduled",
        ),
        (
            "promote",
            "AND available_at <= (SELECT clock_timestamp())\n",
            "AND available_at >= (SELECT clock_timestamp())\n",
            "picking rows does not compare available_at with the clock",
        ),
        (
            "promote",
            "AND available_at <= (SELECT clock_timestamp())\n",
            "AND available_at <= clock_timestamp()\n",
            "a condition uses clock_timestamp() bare: write (SELECT clock_timestamp())",
        ),
        (
            "renew",
            "SET lease_expires_at = clock_timestamp()",
            "SET lease_expires_at = now()",
            "now() stands still within a transaction: use clock_timestamp()",
        ),
        (
            "renew",
            "SET lease_expires_at = clock_timestamp()",
            "SET claimed_at = clock_timestamp()",
            "update of lien_job, but renew ends in claimed",
        ),
        (
            "park",
            "NOT task = ANY",
            "task = ANY",
            "update of lien_job as park does not test the task",
        ),
        (
            "claim",
            "SELECT id FROM pick WHERE NOT known",
            "SELECT id FROM pick WHERE known",
            "update of lien_job as park does not test the task",
        ),
        (
            "claim",
            "AND fence < (SELECT fence FROM drawn)",
            "AND fence <> (SELECT fence FROM drawn)",
            "update of lien_job as claim does not demand that its fence is larger (fence < …)",
        ),
        (
            "reap",
            "INSERT INTO lien.lien_attempt",
            "INSERT INTO lien.lien_sleeper",
            "reap ends an attempt, but lien_attempt gets no row",
        ),
        (
            "succeed_with_result",
            "INSERT INTO lien.lien_history",
            "INSERT INTO lien.lien_sleeper",
            "deletes jobs from lien_job without a row in lien_history",
        ),
        (
            "succeed",
            "DELETE FROM lien.lien_job\n",
            "DELETE FROM lien.lien_sleeper\n",
            "writes lien_history without deleting from lien_job",
        ),
        (
            "snooze",
            "'failed', 'cancelled'",
            "'failed', 'abandoned'",
            "'abandoned' is no reason",
        ),
        ("reap", "'lost', reason", "'vanished', reason", "'vanished' is no outcome"),
        (
            "release",
            "THEN 'interrupted'\n",
            "THEN 'disturbed'\n",
            "'disturbed' is no reason",
        ),
        ("unpark", "pick)) AND state || '' = 'scheduled'", "pick)) AND state || '' = 'parked'", "'parked' is no state"),
        (
            "copy_failed",
            "ON CONFLICT DO NOTHING",
            "ON CONFLICT (id) DO UPDATE SET state = 'runnable'",
            "an INSERT into lien_job may not overwrite a row that is there",
        ),
        (
            "copy_failed",
            "clock_timestamp(), 'runnable',",
            "clock_timestamp(), ",
            "the INSERT into lien_job does not show which value goes into which column",
        ),
        (
            "awake",
            "DELETE FROM lien.lien_sleeper",
            "DELETE FROM lien.lien_job",
            "delete of lien_job without a -- transition: line",
        ),
        (
            "dead_sleepers",
            "DELETE FROM lien.lien_sleeper WHERE",
            "UPDATE lien.lien_job SET lease_expires_at = NULL WHERE",
            "update of lien_job without a -- transition: line",
        ),
        (
            "dead_sleepers",
            "DELETE FROM lien.lien_sleeper WHERE",
            "UPDATE lien.lien_history SET state = 'failed' WHERE",
            "rows of lien_history are written once and never changed",
        ),
        (
            "awake",
            "DELETE FROM",
            "-- transition: cancel\nDELETE FROM",
            "declares cancel but makes no such write",
        ),
        ("reap", "-- transition: reap", "-- transition: reep", "the table has no transition reep"),
        (
            "reserve",
            "SELECT nextval",
            "INSERT INTO lien.lien_attempt (job_id) SELECT 1; SELECT nextval",
            "2 statements under one name",
        ),
        (
            "reserve",
            "SELECT nextval('lien.lien_job_id_seq')",
            "INSERT INTO lien.lien_attempt (job_id, outcome) SELECT n",
            "writes an attempt without a transition that ends one",
        ),
    ],
)
def test_a_changed_statement_is_named(name: str, old: str, new: str, said: str) -> None:
    assert f"{name}: {said}" in changed("postgres", name, old, new)


def test_text_that_is_no_sql_is_named() -> None:
    (said, *_) = changed("postgres", "unpark", "SET state =", "SETT state ==")
    assert said.startswith("unpark: ")


@pytest.mark.parametrize("arrow", TABLE)
def test_a_missing_statement_is_missed(arrow: str) -> None:
    text = {f: re.sub(rf"\b{arrow}\b", "other", t) for f, t in TREE["postgres"].items()}
    assert text != TREE["postgres"]
    assert f"postgres: no statement makes the transition {arrow}" in check_sql.check({"postgres": text})


def test_a_target_that_nothing_reaches_is_missed() -> None:
    said = changed("postgres", "release", "SET state = 'runnable'", "SET claimed_by = NULL")
    assert "postgres: no statement of release lands in runnable" in said


def test_a_verb_of_one_engine_only_is_missed() -> None:
    names = {"first": {"claim", "orphans", "sleep"}, "second": {"claim"}}
    said = list(check_sql.name_problems(names))
    assert said == ["second: no statement orphans, which first has"]


def test_sql_without_a_name_is_missed() -> None:
    files = TREE["postgres"] | {"stray.sql": "DELETE FROM lien.lien_job;\n"}
    said = check_sql.check({"postgres": files})
    assert said == ["postgres/stray.sql: there is SQL before the first -- name: line"]


@pytest.mark.parametrize(
    "text",
    [
        "TRUNCATE lien.lien_job;",
        "MERGE INTO lien.lien_job AS j USING x ON x.id = j.id WHEN MATCHED THEN DELETE;",
    ],
)
def test_other_ways_of_writing_are_refused(text: str) -> None:
    said = check_sql.check({"postgres": {"x.sql": f"-- name: x\n{text}\n"}})
    assert said[0] == ("postgres/x.sql: x: only INSERT, UPDATE, DELETE and COPY of lien_job can be checked")


SEVERAL = """
-- name: succeed_attempts
-- transition: succeed
INSERT INTO lien_attempt (job_id, outcome)
SELECT id, 'succeeded' FROM lien_job WHERE id = :id AND claim_token = :token AND state = 'claimed';
-- name: succeed_history
-- transition: succeed
INSERT INTO lien_history (id, state)
SELECT id, 'succeeded' FROM lien_job WHERE id = :id AND claim_token = :token AND state = 'claimed';
-- name: succeed
-- transition: succeed
DELETE FROM lien_job WHERE id = :id AND claim_token = :token AND state = 'claimed';
"""


def of_several(old: str, new: str) -> set[str]:
    text = SEVERAL.replace(old, new, 1)
    assert (text == SEVERAL) is (old == new)
    said = check_sql.check({"sqlite": {"finish.sql": text}})
    return {p for p in said if "no statement makes" not in p}


def test_a_transition_may_take_several_statements() -> None:
    assert of_several("", "") == set()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "AND claim_token = :token AND state = 'claimed';\n-- name: succeed_history",
            "AND state = 'claimed';\n-- name: succeed_history",
            "sqlite/finish.sql: succeed_attempts: picks rows without comparing claim_token",
        ),
        (
            "AND state = 'claimed';\n-- name: succeed\n",
            ";\n-- name: succeed\n",
            "sqlite/finish.sql: succeed_history: picks rows in any state, table says claimed",
        ),
        (
            "INSERT INTO lien_attempt",
            "INSERT INTO lien_other",
            "sqlite: succeed: succeed ends an attempt, but lien_attempt gets no row",
        ),
        (
            "INSERT INTO lien_history",
            "INSERT INTO lien_other",
            "sqlite: succeed: deletes jobs from lien_job without a row in lien_history",
        ),
        (
            "INSERT INTO lien_history",
            "INSERT OR REPLACE INTO lien_history",
            ("sqlite/finish.sql: succeed_history: an INSERT into lien_history may not overwrite a row that is there"),
        ),
        (
            "DELETE FROM lien_job WHERE id = :id",
            "DELETE FROM lien_job WHERE id = unixepoch('subsec')",
            "sqlite/finish.sql: succeed: unixepoch asks a clock in SQL: bind :now",
        ),
    ],
)
def test_each_of_several_statements_is_looked_at(old: str, new: str, said: str) -> None:
    assert said in of_several(old, new)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("CREATE TABLE jobs (id integer);", "the table jobs does not start with lien_"),
        (
            "CREATE UNIQUE INDEX IF NOT EXISTS due ON lien.lien_job (id);",
            "the index due does not start with lien_",
        ),
        (
            "CREATE FUNCTION lien.f() RETURNS integer LANGUAGE plpgsql AS $$ CREATE TABLE x $$;",
            "the function f does not start with lien_",
        ),
        (
            "CREATE TABLE lien.lien_x (state text, CONSTRAINT good CHECK (state = 'claimed'));",
            "the constraint good does not start with lien_",
        ),
        ("CREATE TABLE lien_x (state text CHECK (state IN ('done')));", "'done' is no state"),
    ],
)
def test_schema_files_are_looked_at(text: str, said: str) -> None:
    found = list(check_sql.schema_problems({"postgres": {"0001_x.sql": text}}))
    assert found == [f"postgres/0001_x.sql: {said}"]


def test_a_schema_file_that_is_no_sql_is_named() -> None:
    (said,) = check_sql.schema_problems({"postgres": {"0001_x.sql": "CREATE TABLE lien_x (((;"}})
    assert said.startswith("postgres/0001_x.sql: ")


@pytest.mark.parametrize(
    ("file", "source", "wrong"),
    [
        ("store.py", "Q = 'SELECT id FROM lien_job'", True),
        ("store.py", "Q = f'UPDATE {t} SET state = 1'", True),
        ("store.py", "Q = f'SELECT {c} FROM lien_job'", True),
        ("store.py", "Q = 'UPDATE lien_job SET state = 1'", True),
        ("store.py", '"""INSERT INTO is only told of here."""', False),
        ("drivers/x.py", "Q = 'SELECT 1'", False),
        ("drivers/x.py", "Q = 'DELETE FROM lien_job'", True),
        ("store.py", "Q = 'SELECT 1'", True),
        ("demo/x.py", "Q = 'CREATE TABLE purse (n integer)'", False),
        ("demo/x.py", "Q = 'DELETE FROM lien_job'", True),
        ("store.py", "Q = 'please select a queue'", False),
    ],
)
def test_python_files_have_no_sql(file: str, source: str, wrong: bool) -> None:
    said = list(check_sql.python_problems({file: source}))
    assert said == [f"{file}:1: SQL belongs into the .sql files of the engines"] * wrong
