"""Random damage of a directory's files and tables, from one seed."""

import json
import random
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

UNREAD = ("lock", "metrics.csv")


def damage(directory: Path, rng: random.Random) -> tuple[str, str]:
    """Damage one file or one table of a directory; returns which, and how."""
    files = sorted(p for p in directory.rglob("*") if p.is_file() and p.name not in UNREAD)
    targets: list[Any] = list(files)
    if (directory / "run.db").is_file():
        targets += [f"run.db {kind}" for kind in ("row", "row", "row", "field", "field", "field", "value")]
    target = rng.choice(targets)
    if isinstance(target, Path):
        return target.name, _damage_file(target, rng)
    return "run.db", _damage_table(directory / "run.db", target.split()[1], rng)


def _damage_file(path: Path, rng: random.Random) -> str:
    data = bytearray(path.read_bytes())
    kind = rng.choice(("cut", "empty", "delete", "bit", "bit", "bytes")) if data else "delete"
    if kind == "delete":
        path.unlink()
        return "deleted"
    at = rng.randrange(len(data))
    if kind == "cut":
        del data[at:]
    elif kind == "empty":
        data.clear()
    elif kind == "bit":
        data[at] ^= 1 << rng.randrange(8)
    else:
        length = rng.randint(1, 64)
        data[at : at + length] = rng.randbytes(len(data[at : at + length]))
    path.write_bytes(data)
    return f"{kind} at {at}"


def _damage_table(path: Path, kind: str, rng: random.Random) -> str:
    with closing(sqlite3.connect(path)) as database, database:
        names = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        full = [n for n in sorted(names) if next(database.execute(f"SELECT count(*) FROM {n}"))[0]]
        if kind == "row":
            table = rng.choice(full)
            key, where = _some_row(database, table, rng)
            database.execute(f"DELETE FROM {table} WHERE {where}", key)
            return f"row {key} of {table} deleted"
        table = rng.choice([n for n in full if n in ("meta", "journal", "metrics", "checkpoints")])
        column = "value" if table == "meta" else "data"
        key, where = _some_row(database, table, rng)
        (text,) = next(database.execute(f"SELECT {column} FROM {table} WHERE {where}", key))
        changed = _without_a_field(text, rng) if kind == "field" else '{"broken": '
        database.execute(f"UPDATE {table} SET {column} = ? WHERE {where}", (changed, *key))
        return f"{column} of row {key} of {table}: {str(text)[:60]} -> {str(changed)[:60]}"


def _some_row(database: sqlite3.Connection, table: str, rng: random.Random) -> tuple[tuple[Any, ...], str]:
    columns = [row[1] for row in database.execute(f"PRAGMA table_info({table})") if row[5]]
    if not columns:
        columns = ["rowid"]
    keys = database.execute(f"SELECT {', '.join(columns)} FROM {table} ORDER BY 1").fetchall()
    return rng.choice(keys), " AND ".join(f"{column} = ?" for column in columns)


def _without_a_field(text: str | None, rng: random.Random) -> str | None:
    """The JSON without one of its fields, at any depth; one that has none is emptied."""
    value = json.loads(text) if text else None
    places: list[Any] = []

    def walk(part: Any) -> None:
        if isinstance(part, dict):
            places.extend((part, key) for key in part)
        if isinstance(part, (dict, list)):
            for child in part.values() if isinstance(part, dict) else part:
                walk(child)

    walk(value)
    if not places:
        return "{}"
    part, key = rng.choice(places)
    del part[key]
    return json.dumps(value)
