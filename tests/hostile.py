"""Directories of an adversary: values of other types, sizes and depths, with checksums that are right."""

import json
import random
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

DEEP = "[" * 3000 + "]" * 3000
VALUES: tuple[Any, ...] = (
    None, "", "nan", "x" * 200_000, b"\x00\xff", -1, 0, 2**40, 2**63 - 1, 1e308, -0.5, float("inf"), DEEP,
    "[]", "{}", "null", "[[1, 2], 3]", '{"name": "os:system", "command": "touch made"}', "../../x",
    "os:system", "\x1b[2J\n", 10**6, 1.5,
)  # fmt: skip
JSON_VALUES: tuple[Any, ...] = (
    None, True, "", "nan", "x" * 100_000, -1, 0, 2**40, 2**63 - 1, 10**30, 1e308, -0.5, [], {}, [[]], [None],
    {"": None}, "../../x", "os:system", "\x1b[2J\n", 10**6, [10**9], {"0": -1}, 1.5, ["a"] * 1000,
)  # fmt: skip
ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n)"
RUNS_CODE = (
    f"DROP TABLE journal; CREATE VIEW journal AS {ENDLESS} SELECT i AS seq, 0.0 AS t, 'event' AS kind, "
    "'left' AS name, NULL, NULL, NULL, NULL, NULL, NULL, NULL FROM n",
    f"DROP TABLE meta; CREATE VIEW meta AS {ENDLESS} SELECT 'k' || i AS key, '1' AS value FROM n",
    "CREATE TRIGGER t AFTER INSERT ON meta BEGIN DELETE FROM journal; END",
    "CREATE TABLE extra(a, b AS (length(zeroblob(1000000000))))",
    "CREATE INDEX later ON journal(name)",
    "CREATE TABLE more(a DEFAULT (randomblob(1000000000)))",
)
"""Statements that put something into a database that runs when it is read or written."""


def spoil(database: Path, rng: random.Random) -> str:
    """Replace one value of one row, or one inside the JSON of a row; returns what was done."""
    with closing(sqlite3.connect(database)) as opened, opened:
        tables = [name for (name,) in opened.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        chosen = [table for table in tables if table != "checksums" and _count(opened, table)]
        table = rng.choice(sorted({"meta", "journal"} & set(chosen)) + sorted(chosen))
        (row,) = (
            rng.choice(opened.execute(f"SELECT rowid FROM {table}").fetchall())
            if _has_rowid(opened, table)
            else (None,)
        )
        columns = [info[1] for info in opened.execute(f"PRAGMA table_info({table})")]
        column = rng.choice(columns)
        where = "1" if row is None else f"rowid = {row}"
        (old,) = next(opened.execute(f"SELECT {column} FROM {table} WHERE {where} LIMIT 1"))
        new = rng.choice(VALUES)
        if isinstance(old, str) and old[:1] in "[{" and rng.random() < 0.7:
            new = json.dumps(_inside(json.loads(old), rng))
        try:
            opened.execute(f"UPDATE {table} SET {column} = ? WHERE {where}", (new,))
        except sqlite3.IntegrityError:
            return "nothing"
        opened.execute("DELETE FROM checksums")  # as an adversary's own would be
    return f"{table}.{column} of row {row}: {str(old)[:80]!r} -> {str(new)[:80]!r}"


def _inside(value: Any, rng: random.Random) -> Any:
    """A JSON value with one of the values in it replaced, or left out."""
    if isinstance(value, dict) and value:
        key = rng.choice(sorted(value))
        if rng.random() < 0.1:
            return {own: item for own, item in value.items() if own != key}
        return {**value, key: _inside(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.8:
        at = rng.randrange(len(value))
        return [*value[:at], _inside(value[at], rng), *value[at + 1 :]]
    return rng.choice(JSON_VALUES)


def _count(database: sqlite3.Connection, table: str) -> int:
    return int(next(database.execute(f"SELECT count(*) FROM {table}"))[0])


def _has_rowid(database: sqlite3.Connection, table: str) -> bool:
    (sql,) = next(database.execute("SELECT sql FROM sqlite_master WHERE name = ?", (table,)))
    return "WITHOUT ROWID" not in sql.upper()
