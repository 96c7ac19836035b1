"""Rows and curves as Parquet tables, and back; pyarrow is imported where it is used: it is an extra."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offbeat.core.errors import UsageError
from offbeat.core.installation import papers_install_command
from offbeat_papers.rows import ResultRow, Results, RunCurve
from offbeat_papers.schema import CURVE_FIELDS, DERIVED_FIELDS, ROW_FIELDS, Field

if TYPE_CHECKING:
    import pyarrow as pa

SPENT = ("seconds", "versions", "tasks", "bytes")
"""Costs, in the order of rows."""
_INSTALL = f"Parquet files need pyarrow: {papers_install_command('parquet')}"


def results_table(results: Results, studies: Iterable[str]) -> "pa.Table":
    """The rows of studies as a table."""
    rows = [row for study in studies for row in results.all_rows(study)]
    return _table([_row_values(row) for row in rows], (*ROW_FIELDS, *DERIVED_FIELDS))


def curves_table(results: Results, studies: Iterable[str]) -> "pa.Table":
    """The curves of studies as a table."""
    curves = [curve for study in studies for curve in results.curves(study).values()]
    return _table([asdict(curve) for curve in curves], CURVE_FIELDS)


def write_table(table: "pa.Table", path: Path) -> Path:
    """Write a table; returns the path."""
    from pyarrow import parquet

    parquet.write_table(table, path, compression="zstd")
    return path


def read_rows(path: Path) -> list[ResultRow]:
    """The rows of a file that `write_table` wrote."""
    own = [field.name for field in ROW_FIELDS]
    return [_row(values) for values in _read(path, own)]


def read_curves(path: Path) -> list[RunCurve]:
    """The curves of a file that `write_table` wrote."""
    return [
        RunCurve(each["digest"], each["metric"], tuple(each["seconds"]), tuple(each["values"]))
        for each in _read(path, [field.name for field in CURVE_FIELDS])
    ]


def _read(path: Path, columns: Sequence[str]) -> list[dict[str, Any]]:
    from pyarrow import parquet

    found: list[dict[str, Any]] = parquet.read_table(path, columns=list(columns)).to_pylist(
        maps_as_pydicts="strict"
    )
    return found


def _row_values(row: ResultRow) -> dict[str, Any]:
    reached = {
        metric: {target: _named(spent) for target, spent in targets.items()}
        for metric, targets in row.reached.items()
    }
    spent = {metric: _named(each) for metric, each in row.spent.items()}
    derived = {"commit_state": row.commit_state, "processor_name": row.processor_name}
    return {**asdict(row), "spent": spent, "reached": reached, **derived}


def _row(values: Mapping[str, Any]) -> ResultRow:
    reached = {
        metric: {target: _spent(each) for target, each in targets.items()}
        for metric, targets in values["reached"].items()
    }
    spent = {metric: _spent(each) for metric, each in values["spent"].items()}
    return ResultRow(**{**values, "spent": spent, "reached": reached})


def _named(spent: Sequence[float] | None) -> dict[str, float] | None:
    return None if spent is None else dict(zip(SPENT, spent, strict=True))


def _spent(named: Mapping[str, float] | None) -> list[float] | None:
    return None if named is None else [named[name] for name in SPENT]


def _table(rows: Sequence[Mapping[str, Any]], fields: Sequence[Field]) -> "pa.Table":
    try:
        import pyarrow as pa
    except ImportError:
        raise UsageError(_INSTALL) from None
    schema = pa.schema([pa.field(each.name, _type(each), metadata=_metadata(each)) for each in fields])
    return pa.table(
        {
            each.name: pa.array([_pairs(row[each.name]) for row in rows], schema.field(each.name).type)
            for each in fields
        },
        schema=schema,
    )


def _pairs(value: Any) -> Any:
    """A mapping by metric as the list of pairs that pyarrow makes maps of; costs stay a struct."""
    if not isinstance(value, Mapping) or value.keys() == set(SPENT):
        return list(value) if isinstance(value, tuple) else value
    return [(key, _pairs(inner)) for key, inner in value.items()]


def _type(field: Field) -> "pa.DataType":
    import pyarrow as pa

    spent = pa.struct([("seconds", pa.float64()), *((name, pa.int64()) for name in SPENT[1:])])
    objects = {
        "spent": pa.map_(pa.string(), spent),
        "reached": pa.map_(pa.string(), pa.map_(pa.string(), spent)),
    }
    plain = {
        "string": pa.string(), "integer": pa.int64(), "number": pa.float64(), "list": pa.list_(pa.float64()),
        "object": objects.get(field.name, pa.map_(pa.string(), pa.float64())),
    }  # fmt: skip
    return plain[field.type]


def _metadata(field: Field) -> dict[str, str]:
    unit = {} if field.unit is None else {"unit": field.unit}
    return {"description": field.meaning, **unit}
