"""Statements come out of their files whole: parameters, literals, names and places as they were meant."""

import sqlite3

import pytest

from lien.sqlfile import load, parse, placed_in_schema, placed_with_prefix

ODD_NAMES = [
    "lien",
    "jobs",
    "Größe",
    "🦊",
    "a.b",
    "lien.lien_job",
    "my-schema",
    "100%",
    "%s %(id)s",
    ":id",
    "a :b",
    "it's",
    "'",
    'say "hi"',
    '"',
    "a--b",
    "back\\slash",
    r"\1",
    "with space",
    "select",
    "$$",
]


def rendered(text: str, style: str) -> str:
    return parse(f"-- name: x\n{text}\n")["x"].render(style)


@pytest.mark.parametrize(
    ("text", "named", "pyformat"),
    [
        ("SELECT :id", "SELECT :id", "SELECT %(id)s"),
        ("SELECT :id, :id", "SELECT :id, :id", "SELECT %(id)s, %(id)s"),
        ("SELECT CAST(:a_1 AS text)", "SELECT CAST(:a_1 AS text)", "SELECT CAST(%(a_1)s AS text)"),
        ("SELECT a::text", "SELECT a::text", "SELECT a::text"),
        ("SELECT ':id'", "SELECT ':id'", "SELECT ':id'"),
        ("SELECT '50%', :id", "SELECT '50%', :id", "SELECT '50%%', %(id)s"),
        ("SELECT 'it''s :x', :y", "SELECT 'it''s :x', :y", "SELECT 'it''s :x', %(y)s"),
        ("SELECT 5 % :n", "SELECT 5 % :n", "SELECT 5 %% %(n)s"),
        ('SELECT "a%:b"', 'SELECT "a%:b"', 'SELECT "a%%:b"'),
        ('SELECT "it\'s", :x', 'SELECT "it\'s", :x', 'SELECT "it\'s", %(x)s'),
        ('SELECT "a""-- :b", :x', 'SELECT "a""-- :b", :x', 'SELECT "a""-- :b", %(x)s'),
        ("SELECT 1 -- it's :a\n, :b", "SELECT 1 \n, :b", "SELECT 1 \n, %(b)s"),
        ("SELECT '--', :b", "SELECT '--', :b", "SELECT '--', %(b)s"),
        ("SELECT '', :b", "SELECT '', :b", "SELECT '', %(b)s"),
    ],
)
def test_parameters(text: str, named: str, pyformat: str) -> None:
    assert rendered(text, "named") == named
    assert rendered(text, "pyformat") == pyformat


def test_a_rendered_statement_is_kept() -> None:
    statement = parse("-- name: x\nSELECT :id;\n")["x"]
    assert statement.render("named") is statement.render("named")


FILE = """-- What this file is about.

-- name: first
-- transition: claim, park
-- Why it is so.
SELECT 1;

-- name: second
SELECT 2;
"""


def test_statements_of_a_file() -> None:
    found = parse(FILE)
    assert list(found) == ["first", "second"]
    assert found["first"].transitions == ("claim", "park")
    assert found["first"].text == "-- Why it is so.\nSELECT 1"
    assert found["first"].render("named").strip() == "SELECT 1"
    assert found["second"].transitions == ()
    assert found["second"].text == "SELECT 2"


def test_a_name_stands_for_one_statement() -> None:
    with pytest.raises(ValueError, match="statement second is there twice"):
        parse(FILE + "-- name: second\nSELECT 3;\n")


def test_the_statements_of_an_engine() -> None:
    found = load("lien.engines.postgres")
    assert {"enqueue", "claim", "succeed", "show"} <= found.keys()
    assert found["claim"].name == "claim"
    assert found["claim"].transitions == ("claim", "park")
    placed = load("lien.engines.postgres", placed_in_schema("jobs"))
    assert placed.keys() == found.keys()
    assert 'UPDATE "jobs".lien_job' in placed["claim"].text
    for statement in placed.values():
        assert "lien.lien_job" not in statement.text


@pytest.mark.parametrize("schema", ODD_NAMES)
def test_a_schema_of_any_name(schema: str) -> None:
    name = '"' + schema.replace('"', '""') + '"'
    inside = name.replace("'", "''")
    text = (
        "-- the caller's own lien.lien_job\n"
        "SELECT nextval('lien.lien_fence'), ':x' FROM lien.lien_job WHERE id = :id AND state = 'lien.'"
    )
    placed = placed_in_schema(schema)(text)
    assert placed == (
        "-- the caller's own lien.lien_job\n"
        f"SELECT nextval('{inside}.lien_fence'), ':x' "
        f"FROM {name}.lien_job WHERE id = :id AND state = 'lien.'"
    )
    sql = rendered(placed, "pyformat")
    assert sql.strip() % {"id": "ID"} == (
        f"SELECT nextval('{inside}.lien_fence'), ':x' FROM {name}.lien_job WHERE id = ID AND state = 'lien.'"
    )


@pytest.mark.parametrize("schema", ODD_NAMES)
def test_a_database_reads_the_name_as_it_was_given(schema: str) -> None:
    text = "SELECT id, 'it''s 5%' FROM lien.lien_job WHERE id = :id"
    with sqlite3.connect(":memory:") as db:
        db.execute("ATTACH ':memory:' AS " + '"' + schema.replace('"', '""') + '"')
        place = placed_in_schema(schema)
        db.execute(place("CREATE TABLE lien.lien_job (id integer)"))
        db.execute(place("INSERT INTO lien.lien_job VALUES (7)"))
        rows = db.execute(rendered(place(text), "named"), {"id": 7}).fetchall()
    db.close()
    assert rows == [(7, "it's 5%")]


def test_only_the_schema_is_replaced() -> None:
    place = placed_in_schema("x")
    assert place("SELECT alien.lien_job, lien_job FROM lien.lien_job") == (
        'SELECT alien.lien_job, lien_job FROM "x".lien_job'
    )


@pytest.mark.parametrize("prefix", ["lien_", "shop_", "", r"\1_"])
def test_a_prefix(prefix: str) -> None:
    text = "SELECT * FROM lien_job JOIN alien_job -- lien_job_due\nWHERE 'lien_fence' = :lien"
    assert placed_with_prefix(prefix)(text) == (
        f"SELECT * FROM {prefix}job JOIN alien_job -- {prefix}job_due\nWHERE '{prefix}fence' = :lien"
    )
