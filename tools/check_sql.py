"""Checks the SQL of every engine against the state machine, one line for each problem.

The table of transitions in `lien.machine` is the law. A statement names its arrows in a
``-- transition:`` line; this check reads what the statement really does and refuses whatever the
table does not have: another start, another end, a missing guard, record or statement.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import sql_facts as sql
from sqlglot import exp

from lien.machine import (
    LIVE,
    TABLE,
    TERMINAL,
    AttemptOutcome,
    Guard,
    Reason,
    State,
    Transition,
)
from lien.sqlfile import parse as named_statements

SOURCE = Path(__file__).parents[1] / "src" / "lien"
CLAIM_COLUMNS = frozenset(
    {
        "state",
        "attempt",
        "fence",
        "claim_token",
        "claimed_by",
        "claimed_at",
        "lease_expires_at",
        "cancel_requested",
    }
)
EFFECTS = {"renew": "lease_expires_at", "request_cancel": "cancel_requested"}
"""Arrows that stay in their state, and the column by which they can be told."""
CLOCKED = {Guard.DUE, Guard.LEASE_OVER, Guard.EXPIRED}
"""Guards that say: this time has come by the database's clock."""
WHOLE = {"postgres"}
"""Engines that make a transition in one statement; elsewhere it may take several together."""
VERBS = [name for name in TABLE if name != "request_cancel"]
VERBS += ["show", "list", "attempts", "find_unique", "find_closed", "orphans", "cancel_requests"]
"""Statements that every engine has under the same name."""
WORDS: dict[str, set[str]] = {
    "state": set(State),
    "reason": set(Reason),
    "outcome": set(AttemptOutcome),
}

Tree = Mapping[str, Mapping[str, str]]
"""Engine, then file, then text."""


@dataclass(frozen=True)
class Checked:
    """One named statement with its facts."""

    engine: str
    place: str
    name: str
    arrows: tuple[Transition, ...]
    facts: sql.Facts

    def makes(self, arrow: Transition) -> list[sql.Write]:
        """The writes of live jobs and of the history that can be this arrow."""
        return [w for w in self.facts.writes if w.table != sql.ATTEMPT and can_be(arrow, w)]


def check(tree: Tree) -> list[str]:
    """All problems of all engines."""
    problems: list[str] = []
    names: dict[str, set[str]] = {}
    for engine, files in tree.items():
        if not files:
            problems.append(f"{engine}: there are no .sql files")
            continue
        statements, bad = read(engine, files)
        problems += bad
        names[engine] = {s.name for s in statements}
        for statement in statements:
            problems += [f"{statement.place}: {p}" for p in statement_problems(statement)]
        problems += engine_problems(engine, statements)
    return problems + list(name_problems(names))


def read(engine: str, files: Mapping[str, str]) -> tuple[list[Checked], list[str]]:
    """The statements of an engine, and what could not be read."""
    found: list[Checked] = []
    problems: list[str] = []
    for file, text in sorted(files.items()):
        head = text.partition("-- name: ")[0]
        if re.sub(r"--[^\n]*", "", head).strip():
            problems.append(f"{engine}/{file}: there is SQL before the first -- name: line")
        for name, statement in named_statements(text).items():
            place = f"{engine}/{file}: {name}"
            try:
                facts = _facts(statement.text, engine)
            except ValueError as error:
                problems.append(f"{place}: {error}")
                continue
            unknown = [t for t in statement.transitions if t not in TABLE]
            problems += [f"{place}: the table has no transition {t}" for t in unknown]
            arrows = tuple(TABLE[t] for t in statement.transitions if t in TABLE)
            found.append(Checked(engine, place, name, arrows, facts))
    return found, problems


@cache
def _facts(text: str, engine: str) -> sql.Facts:
    trees = sql.parse(text, engine)
    if len(trees) != 1:
        raise ValueError(f"{len(trees)} statements under one name")
    return sql.facts(trees[0])


def statement_problems(statement: Checked) -> Iterator[str]:
    """What is wrong with one statement, taken alone."""
    facts, arrows = statement.facts, statement.arrows
    yield from facts.oddities
    yield from clock_problems(statement)
    yield from word_problems(facts)
    for write in facts.writes:
        yield from write_problems(statement, write)
    choosing = arrows or _picks_for(statement.name)
    if choosing:
        for pick in facts.picks:
            yield from pick_problems(statement.engine, choosing, pick)
    for arrow in arrows:
        if not statement.makes(arrow) and not _takes_part(statement, arrow):
            yield f"declares {arrow.name} but makes no such write"
    if statement.engine in WHOLE:
        yield from record_problems([statement], arrows)


def _picks_for(name: str) -> tuple[Transition, ...]:
    """``reap_pick`` only reads, yet what it picks is what ``reap`` will move."""
    verb = name.removesuffix("_pick")
    return (TABLE[verb],) if verb != name and verb in TABLE else ()


def _takes_part(statement: Checked, arrow: Transition) -> bool:
    """Whether it is a part of a transition that takes several statements."""
    if statement.engine in WHOLE:
        return False
    return bool(statement.facts.picks) or (arrow.closes and bool(statement.facts.of(sql.ATTEMPT)))


def can_be(arrow: Transition, write: sql.Write) -> bool:
    """Whether a write has the shape of an arrow: what it does, not yet what it tests."""
    lands = write.lands
    if write.kind == "insert" and write.table == sql.JOB:
        return not arrow.source and (lands is None or lands <= arrow.target)
    if not arrow.source:
        return False
    if write.kind == "delete":
        return bool(arrow.target & TERMINAL)
    if lands is None:
        return write.kind == "update" and EFFECTS.get(arrow.name) in write.values
    terminal = write.table == sql.HISTORY
    allowed = arrow.target & TERMINAL if terminal else arrow.target - TERMINAL
    return arrow.name not in EFFECTS and lands <= allowed


def write_problems(statement: Checked, write: sql.Write) -> Iterator[str]:
    """What is wrong with one write of a statement."""
    if write.table == sql.ATTEMPT:
        if write.kind == "insert" and not any(arrow.closes for arrow in statement.arrows):
            yield "writes an attempt without a transition that ends one"
        return
    if write.table == sql.HISTORY and write.kind != "insert":
        return
    if write.kind == "update" and not write.values.keys() & CLAIM_COLUMNS:
        return
    does = f"{write.kind} of {write.table}"
    if not statement.arrows:
        yield f"{does} without a -- transition: line"
        return
    fitting = [arrow for arrow in statement.arrows if can_be(arrow, write)]
    if not fitting:
        lands = f" lands in {_list(write.lands)}" if write.lands else ""
        wants = "; ".join(f"{a.name} ends in {_list(a.target)}" for a in statement.arrows)
        yield f"{does}{lands}, but {wants}"
    elif write.kind != "insert":
        yield from min((guard_problems(statement, arrow, write) for arrow in fitting), key=len)


def guard_problems(statement: Checked, arrow: Transition, write: sql.Write) -> list[str]:
    """The guards of an arrow that an UPDATE or DELETE lacks."""
    does = f"{write.kind} of {write.table} as {arrow.name}"
    where, facts = write.where, statement.facts
    problems = []
    if where.states() != set(arrow.source):
        starts = _list(where.states())
        problems.append(f"{does} starts from {starts}, table says {_list(arrow.source)}")
    if arrow.token and not any(where.compares("claim_token", exp.EQ)):
        problems.append(f"{does} does not compare claim_token")
    if not facts.picks:  # otherwise the pick is where these are looked at, under its lock
        problems += _late(statement.engine, arrow.guards, where, does)
    known = arrow.name != "park"
    if Guard.TASK in arrow.guards and not any(
        tests.tests_task(facts.task_aliases, known=known) for tests in (where, *facts.picks)
    ):
        problems.append(f"{does} does not test the task")
    if arrow.name == "claim" and not any(where.compares("fence", exp.LT)):
        problems.append(f"{does} does not demand that its fence is larger (fence < …)")
    return problems


def pick_problems(engine: str, arrows: tuple[Transition, ...], pick: sql.Conditions) -> Iterator[str]:
    """The guards that a row-choosing SELECT lacks: its LIMIT would fill with the wrong rows."""
    source = frozenset[State]().union(*(arrow.source for arrow in arrows))
    states = pick.states()
    if states != set(source) and not (states is None and source == LIVE):
        yield f"picks rows in {_list(states)}, table says {_list(source)}"
    guards = frozenset.intersection(*(arrow.guards for arrow in arrows))
    if Guard.TOKEN in guards and not any(pick.compares("claim_token", exp.EQ)):
        yield "picks rows without comparing claim_token"
    yield from _late(engine, guards, pick, "picking rows")


def _late(engine: str, guards: frozenset[Guard], tests: sql.Conditions, does: str) -> Iterator[str]:
    for guard in sorted(guards & CLOCKED):
        past = tests.compares(guard, exp.LT, exp.LTE)
        if not any(sql.is_clock(other, engine) for other in past):
            yield f"{does} does not compare {guard} with the clock"


def record_problems(statements: list[Checked], arrows: tuple[Transition, ...]) -> Iterator[str]:
    """Attempts and history: what ends an attempt or a job leaves its record."""
    deletes = any(s.facts.of(sql.JOB, "delete") for s in statements)
    kept = any(s.facts.of(sql.HISTORY, "insert") for s in statements)
    if deletes and not kept:
        yield "deletes jobs from lien_job without a row in lien_history"
    if kept and not deletes:
        yield "writes lien_history without deleting from lien_job"
    for arrow in arrows:
        if arrow.closes and not any(s.facts.of(sql.ATTEMPT, "insert") for s in statements):
            yield f"{arrow.name} ends an attempt, but lien_attempt gets no row"


def clock_problems(statement: Checked) -> Iterator[str]:
    """Times that stand still, that no index can use, or that the wrong clock tells."""
    tree = statement.facts.tree
    if statement.engine == "postgres":
        for name in sorted(sql.stale_clocks(tree)):
            yield f"{name}() stands still within a transaction: use clock_timestamp()"
        if sql.bare_clock(tree):
            yield "a condition uses clock_timestamp() bare: write (SELECT clock_timestamp())"
    else:
        for name in sorted(sql.host_clocks(tree)):
            yield f"{name} asks a clock in SQL: bind :now"


def word_problems(facts: sql.Facts) -> Iterator[str]:
    """Words for state, reason or outcome that the state machine does not know."""
    for column, known in WORDS.items():
        used: set[str] = set()
        for test in facts.tree.find_all(exp.EQ, exp.In):
            used |= sql.literals_compared(test, column) or set()
        values = [write.values.get(column) for write in facts.writes]
        values += [a.this for a in facts.tree.find_all(exp.Alias) if a.alias == column]
        used |= set().union(*(sql.outcomes(value) for value in values if value is not None))
        yield from (f"{word!r} is no {column}" for word in sorted(used - known - {"?"}))


def engine_problems(engine: str, statements: list[Checked]) -> Iterator[str]:
    """What an engine as a whole lacks."""
    for arrow in TABLE.values():
        group = [s for s in statements if arrow in s.arrows]
        if not group:
            yield f"{engine}: no statement makes the transition {arrow.name}"
            continue
        writes = [w for s in group for w in s.makes(arrow)]
        reached = set().union(*(w.lands or set() for w in writes))
        if arrow.name not in EFFECTS and arrow.target - reached:
            yield f"{engine}: no statement of {arrow.name} lands in {_list(arrow.target - reached)}"
        if arrow.name in EFFECTS and not writes:
            yield f"{engine}: no statement of {arrow.name} writes {EFFECTS[arrow.name]}"
        if engine not in WHOLE:
            yield from (f"{engine}: {arrow.name}: {p}" for p in record_problems(group, (arrow,)))


def name_problems(names: Mapping[str, set[str]]) -> Iterator[str]:
    """Verbs that one engine has and another lacks."""
    for verb in VERBS:
        having = sorted(engine for engine in names if verb in names[engine])
        if having:
            for engine in sorted(names.keys() - set(having)):
                yield f"{engine}: no statement {verb}, which {', '.join(having)} has"


def schema_problems(tree: Tree) -> Iterator[str]:
    """Schema files: they parse, every name starts with lien_, and live jobs are in live states."""
    for engine, files in tree.items():
        for file, text in files.items():
            place = f"{engine}/{file}"
            plain = re.sub(r"--[^\n]*|\$\$.*?\$\$", " ", text, flags=re.DOTALL)
            for kind, name in _OBJECT.findall(plain):
                if not name.startswith("lien_"):
                    yield f"{place}: the {kind.lower()} {name} does not start with lien_"
            try:
                trees = sql.parse(re.sub(r"\$\$.*?\$\$", "''", text, flags=re.DOTALL), engine)
            except ValueError as error:
                yield f"{place}: {error}"
                continue
            yield from (f"{place}: {p}" for t in trees for p in word_problems(sql.facts(t)))


_OBJECT = re.compile(
    r"\b(TABLE|INDEX|VIEW|SEQUENCE|FUNCTION|TRIGGER|TYPE|CONSTRAINT)\s+(?:CONCURRENTLY\s+)?"
    r"(?:IF\s+(?:NOT\s+)?EXISTS\s+)?(?:lien\.)?\"?(\w+)"
)
_PROBE = re.compile(r"SELECT 1( FROM sqlite_master)?")
_SQL = re.compile(
    r"\b(SELECT\s|INSERT\s+(OR\s+\w+\s+)?INTO\b|UPDATE\s+\S+\s+SET\b|DELETE\s+FROM\b"
    r"|(CREATE|ALTER|DROP)\s+(TABLE|INDEX|VIEW|SCHEMA)\b)"
)


def python_problems(sources: Mapping[str, str]) -> Iterator[str]:
    """SQL in Python files: a driver may ask ``SELECT 1``, a demo has tables of its own and looks at ours."""
    for file, source in sorted(sources.items()):
        tree = ast.parse(source, file)
        docs = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
        lines = set()
        for node in ast.walk(tree):
            text = _text(node)
            looks = text.lstrip().upper().startswith(("SELECT", "WITH", "CREATE VIEW"))
            own_tables = file.startswith("demo/") and (looks or "lien_" not in text)
            probe = file.startswith("drivers/") and _PROBE.fullmatch(text)
            if id(node) not in docs and _SQL.search(text) and not own_tables and not probe:
                lines.add(getattr(node, "lineno", 0))
        for line in sorted(lines):
            yield f"{file}:{line}: SQL belongs into the .sql files of the engines"


def _text(node: ast.AST) -> str:
    """A string literal's text, an f-string's with ``x`` for each value; else nothing."""
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) or "x" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _list(states: set[str] | frozenset[State] | None) -> str:
    return ", ".join(sorted(states)) if states else "any state"


def engine_files(folder: str = "") -> dict[str, dict[str, str]]:
    """The .sql files of every engine, or those of one folder inside each."""
    engines = [p for p in sorted((SOURCE / "engines").iterdir()) if p.is_dir()]
    return {
        engine.name: {f.name: f.read_text("utf-8") for f in sorted((engine / folder).glob("*.sql"))}
        for engine in engines
        if engine.name.isidentifier() and not engine.name.startswith("_")
    }


def python_files() -> dict[str, str]:
    """The Python files of the package."""
    return {str(f.relative_to(SOURCE)): f.read_text("utf-8") for f in SOURCE.rglob("*.py")}


def main() -> int:
    """Report every problem; 1 when there is one."""
    problems = check(engine_files())
    problems += schema_problems(engine_files("schema"))
    problems += python_problems(python_files())
    print("\n".join(problems), end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
