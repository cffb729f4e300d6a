"""Writing metric tables: `metric_table_NAME.csv` in the working directory, for the tables that are on."""

from __future__ import annotations

import csv
import fcntl
import io
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeAlias

from gyrator.config import Config
from gyrator.errors import InternalCheckError
from gyrator.metric_tables import TABLES, Table

Cell: TypeAlias = "str | int | float | None"
Row: TypeAlias = "Mapping[str, Cell]"


def add_rows(config: Config, name: str, rows: Callable[[], Iterable[Row]]) -> None:
    """Append rows to a table if it is on; otherwise `rows` is not even called.

    A float has 6 decimals and None is empty. Several processes may append to one file; the first writes the header.

    Raises:
        KeyError: no table has that name. InternalCheckError: a row has other columns than its table.
    """
    table = TABLES[name]
    if name not in config.metrics:
        return
    lines = [_line(table, row, config.model_name) for row in rows()]
    if lines:
        _append(Path(table.file), table, lines)


def start_tables(config: Config) -> None:
    """Begin the tables that are on anew: files of earlier runs go, headers are written. For the process that
    starts those which add rows.
    """
    for name in config.metrics:
        Path(TABLES[name].file).unlink(missing_ok=True)
        _append(Path(TABLES[name].file), TABLES[name], [])


def _append(path: Path, table: Table, lines: list[str]) -> None:
    with path.open("a", newline="") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        stream.seek(0, io.SEEK_END)
        if stream.tell() == 0:
            stream.write(_csv(["model_name", *table.columns]))
        stream.write("".join(lines))


def _line(table: Table, row: Row, model: str) -> str:
    if set(row) != set(table.columns):
        odd = sorted(set(row) ^ set(table.columns))
        raise InternalCheckError("metrics", f"a row of table {table.name} differs in columns {odd}")
    return _csv([model, *(_cell(row[column]) for column in table.columns)])


def _cell(value: Cell) -> str:
    if value is None:
        return ""
    return f"{value:.6f}" if isinstance(value, float) else str(value)


def _csv(cells: list[str]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()
