"""What a SQL statement does to jobs, read off its syntax tree: writes, rows picked, tests made."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import sqlglot
from sqlglot import exp

JOB, ATTEMPT, HISTORY = "lien_job", "lien_attempt", "lien_history"
CLOCKS = {"clock_timestamp"}
STALE_CLOCKS = {"now", "statement_timestamp"}  # who means the start of the transaction says transaction_timestamp
HOST_CLOCKS = {"unixepoch", "strftime", "datetime", "julianday"}
_WRITING = (exp.Insert, exp.Update, exp.Delete, exp.Copy, exp.Merge, exp.TruncateTable)
_FLIPPED: dict[type[exp.Expr], type[exp.Expr]] = {
    exp.EQ: exp.EQ,
    exp.LT: exp.GT,
    exp.LTE: exp.GTE,
    exp.GT: exp.LT,
    exp.GTE: exp.LTE,
}

logging.getLogger("sqlglot").setLevel(logging.ERROR)  # it warns of every plpgsql body it skips


@dataclass(frozen=True)
class Conditions:
    """The conditions that all hold for a row: only what AND joins at the top counts as a guard."""

    terms: tuple[exp.Expr, ...]
    names: frozenset[str]
    """What the job's table is called here; the empty name is an unqualified column."""

    def states(self) -> set[str] | None:
        """The states it lets through, or None when it does not test the state."""
        found: set[str] | None = None
        for term in self.terms:
            values = literals_compared(term, "state", self.names)
            if values is not None:
                found = values if found is None else found & values
        return found

    def compares(self, column: str, *kinds: type[exp.Expr]) -> Iterator[exp.Expr]:
        """What the column is compared with by these operators, whichever side it stands on."""
        for term in self.terms:
            flipped = _FLIPPED.get(type(term))
            if flipped is None:
                continue
            for side, other, kind in (
                (term.this, term.expression, type(term)),
                (term.expression, term.this, flipped),
            ):
                if kind in kinds and is_column(side, column, self.names):
                    yield other

    def tests_task(self, aliases: set[str], *, known: bool) -> bool:
        """Whether it demands a task that the worker knows, or (``known`` false) one that not."""
        columns = (column for term in self.terms for column in term.find_all(exp.Column))
        return any(
            _negated(column) is not known
            for column in columns
            if column.name in aliases
            or (column.name == "task" and isinstance(column.parent, exp.EQ | exp.NEQ | exp.In))
        )


@dataclass(frozen=True)
class Write:
    """One INSERT, UPDATE, DELETE or COPY of one of the three tables."""

    kind: str
    table: str
    values: dict[str, exp.Expr | None]
    where: Conditions

    @property
    def lands(self) -> set[str] | None:
        """The states written; None when it writes none, or from elsewhere (COPY)."""
        value = self.values.get("state")
        return None if value is None else outcomes(value)


@dataclass(frozen=True)
class Facts:
    """Everything the rules want to know of one statement."""

    tree: exp.Expr
    writes: tuple[Write, ...]
    picks: tuple[Conditions, ...]
    oddities: tuple[str, ...]
    task_aliases: set[str]

    def of(self, table: str, *kinds: str) -> list[Write]:
        """The writes of a table."""
        return [w for w in self.writes if w.table == table and (not kinds or w.kind in kinds)]


def parse(text: str, dialect: str) -> list[exp.Expr]:
    """The statements of a text.

    Raises:
        ValueError: it cannot be parsed.
    """
    try:
        return [tree for tree in sqlglot.parse(text, read=dialect) if tree is not None]
    except sqlglot.errors.SqlglotError as error:
        raise ValueError(str(error).splitlines()[0]) from error


def facts(tree: exp.Expr) -> Facts:
    """The facts of a parsed statement."""
    writes: list[Write] = []
    oddities: list[str] = []
    for node in tree.find_all(*_WRITING):
        table = _written(node)
        if table is None or table.name not in {JOB, ATTEMPT, HISTORY}:
            continue
        write = _write(node, table)
        if write is not None:
            writes.append(write)
        oddities += _oddities(node, table.name)
    picks = tuple(conditions(select) for select in tree.find_all(exp.Select) if _picks_jobs(select))
    aliases = {
        alias.alias
        for alias in tree.find_all(exp.Alias)
        if isinstance(alias.this, exp.EQ | exp.In) and is_column(alias.this.this, "task")
    }
    return Facts(tree, tuple(writes), picks, tuple(oddities), aliases)


def conditions(node: exp.Expr) -> Conditions:
    """The conditions of a SELECT, UPDATE or DELETE: WHERE and the ON of its joins."""
    where = node.args.get("where")
    parts = [where.this] if where else []
    parts += [join.args["on"] for join in node.args.get("joins") or () if join.args.get("on")]
    names = {table.alias_or_name for table in _tables(node) if table.name == JOB} | {""}
    return Conditions(tuple(term for part in parts for term in _conjuncts(part)), frozenset(names))


def is_column(node: exp.Expr, name: str, tables: frozenset[str] | None = None) -> bool:
    """Whether it is this column, plain or hidden from the planner as ``column || ''``."""
    if isinstance(node, exp.DPipe) and isinstance(node.expression, exp.Literal):
        node = node.this if node.expression.this == "" else node
    if not isinstance(node, exp.Column) or node.name != name:
        return False
    return tables is None or node.table in tables


def literals_compared(node: exp.Expr, column: str, tables: frozenset[str] | None = None) -> set[str] | None:
    """The words a column is compared with by = or IN, or None when this is no such test."""
    if isinstance(node, exp.EQ):
        others = [node.expression] if is_column(node.this, column, tables) else []
    elif isinstance(node, exp.In) and is_column(node.this, column, tables):
        others = node.expressions
    else:
        others = []
    words = {other.this for other in others if isinstance(other, exp.Literal) and other.is_string}
    return words if others and len(words) == len(others) else None


def outcomes(value: exp.Expr) -> set[str]:
    """The words that an expression can come to; ``?`` is anything that cannot be read off."""
    if isinstance(value, exp.Literal) and value.is_string:
        return {value.this}
    if isinstance(value, exp.Case):
        ends = [branch.args["true"] for branch in value.args["ifs"]]
        ends += [value.args["default"]] if value.args.get("default") else []
        return set().union(*map(outcomes, ends))
    if isinstance(value, exp.Paren | exp.Cast | exp.Alias):
        return outcomes(value.this)
    if isinstance(value, exp.Coalesce):
        return set().union(*map(outcomes, [value.this, *value.expressions]))
    return set() if isinstance(value, exp.Null) else {"?"}


def stale_clocks(tree: exp.Expr) -> set[str]:
    """Clocks that stand still within a transaction."""
    found = {n.name.lower() for n in tree.find_all(exp.Anonymous)} & STALE_CLOCKS
    if tree.find(exp.CurrentTimestamp, exp.Localtimestamp, exp.CurrentDate, exp.CurrentTime):
        found.add("now")
    return found


def host_clocks(tree: exp.Expr) -> set[str]:
    """Clock functions that the engine's SQL should leave to the driver."""
    found = {n.name.lower() for n in tree.find_all(exp.Anonymous)} & (HOST_CLOCKS | CLOCKS)
    if tree.find(exp.CurrentTimestamp, exp.TimeToStr, exp.CurrentDate, exp.CurrentTime):
        found.add("current_timestamp")
    return found


def bare_clock(tree: exp.Expr) -> bool:
    """Whether a condition calls the volatile clock itself, where no index can serve it."""
    for call in tree.find_all(exp.Anonymous):
        if call.name.lower() not in CLOCKS:
            continue
        above = call.find_ancestor(exp.Select, exp.Where, exp.Join, exp.Update, exp.Having)
        if isinstance(above, exp.Where | exp.Join | exp.Having):
            return True
    return False


def is_clock(node: exp.Expr, dialect: str) -> bool:
    """Whether an expression is this moment: a call on PostgreSQL, the bound ``:now`` elsewhere."""
    if dialect == "postgres":
        return any(call.name.lower() in CLOCKS for call in node.find_all(exp.Anonymous))
    return any(mark.name == "now" for mark in node.find_all(exp.Placeholder))


def _written(node: exp.Expr) -> exp.Table | None:
    target = node.this if node.this is not None else next(iter(node.expressions), None)
    if isinstance(target, exp.Schema):
        target = target.this
    return target if isinstance(target, exp.Table) else None


def _write(node: exp.Expr, table: exp.Table) -> Write | None:
    if isinstance(node, exp.Insert | exp.Copy):
        columns = [c.name for c in node.this.expressions if isinstance(node.this, exp.Schema)]
        source = node.expression if isinstance(node, exp.Insert) else None
        return Write("insert", table.name, _row(columns, source), Conditions((), frozenset()))
    if isinstance(node, exp.Update):
        return Write("update", table.name, _assigned(node), conditions(node))
    if isinstance(node, exp.Delete):
        return Write("delete", table.name, {}, conditions(node))
    return None


def _row(columns: list[str], source: exp.Expr | None) -> dict[str, exp.Expr | None]:
    """Columns and what an INSERT puts into them, as far as it can be read off."""
    if isinstance(source, exp.Values) and len(source.expressions) == 1:
        values = source.expressions[0].expressions
    elif isinstance(source, exp.Select):
        values = source.expressions
    else:
        values = []
    if len(columns) != len(values) or _only_marks(source):
        return dict.fromkeys(columns)
    return dict(zip(columns, values, strict=True))


def _only_marks(source: exp.Expr | None) -> bool:
    """Whether an INSERT takes a whole row as bound, the bulk way in of engines without COPY."""
    if not isinstance(source, exp.Values):
        return False
    values = [value for row in source.expressions for value in row.expressions]
    return all(isinstance(value, exp.Placeholder) and not value.this for value in values)


def _assigned(update: exp.Update) -> dict[str, exp.Expr | None]:
    pairs = [e for e in update.expressions if isinstance(e.this, exp.Column)]
    return {e.this.name: e.expression for e in pairs}


def _oddities(node: exp.Expr, table: str) -> Iterator[str]:
    """Ways of writing that the rules cannot follow, or that overwrite a row without a guard."""
    if isinstance(node, exp.Merge | exp.TruncateTable):
        yield f"only INSERT, UPDATE, DELETE and COPY of {table} can be checked"
    elif isinstance(node, exp.Insert):
        conflict = node.args.get("conflict")
        if (conflict and conflict.expressions) or node.args.get("alternative") == "REPLACE":
            yield f"an INSERT into {table} may not overwrite a row that is there"
        values = _row([c.name for c in node.this.expressions], node.expression)
        seen = values.get("state") is not None or _only_marks(node.expression)
        if not values or (table != ATTEMPT and not seen):
            yield f"the INSERT into {table} does not show which value goes into which column"
    elif isinstance(node, exp.Update):
        if table != JOB:
            yield f"rows of {table} are written once and never changed"
        if not all(isinstance(e.this, exp.Column) for e in node.expressions):
            yield f"set the columns of {table} one by one"


def _picks_jobs(select: exp.Select) -> bool:
    """Whether it chooses the jobs that something is done to: locks, limits or records them."""
    if not any(table.name == JOB for table in _tables(select)):
        return False
    if isinstance(select.parent, exp.Insert):
        into = _written(select.parent)
        return into is not None and into.name in {ATTEMPT, HISTORY}
    ids = any(isinstance(e, exp.Star) or e.alias_or_name == "id" for e in select.expressions)
    return ids and bool(select.args.get("locks") or select.args.get("limit"))


def _tables(node: exp.Expr) -> Iterator[exp.Table]:
    source = node.args.get("from_") or node.args.get("from")
    joined = [join.this for join in node.args.get("joins") or ()]
    own = [] if isinstance(node, exp.Select) else [node.this]
    for item in [*own, *([source.this] if source else []), *joined]:
        if isinstance(item, exp.Table):
            yield item


def _conjuncts(node: exp.Expr) -> Iterable[exp.Expr]:
    if isinstance(node, exp.And):
        return [*_conjuncts(node.this), *_conjuncts(node.expression)]
    return _conjuncts(node.this) if isinstance(node, exp.Paren) else [node]


def _negated(node: exp.Expr) -> bool:
    turns = 0
    above = node.parent
    while above is not None and not isinstance(above, exp.Where):
        turns += isinstance(above, exp.Not | exp.NEQ)
        above = above.parent
    return turns % 2 == 1
