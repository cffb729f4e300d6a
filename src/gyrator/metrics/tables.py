"""Writing metric tables: `metric_table_NAME.csv` in the working directory, for the tables that are on."""

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
    found = [_cells(table, row, config.model_name) for row in rows()]
    if found:
        _append(table, found)


def start_tables(config: Config) -> None:
    """Begin the tables that are on anew: files of earlier runs go, headers are written. For the process that
    starts those which add rows.
    """
    for name in config.metrics:
        Path(TABLES[name].file).unlink(missing_ok=True)
        _append(TABLES[name], [])


def _append(table: Table, rows: list[list[Cell]]) -> None:
    with Path(table.file).open("a", newline="") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        writer = csv.writer(stream, lineterminator="\n")
        if stream.seek(0, io.SEEK_END) == 0:
            writer.writerow(["model_name", *table.columns])
        writer.writerows(rows)


def _cells(table: Table, row: Row, model: str) -> list[Cell]:
    if set(row) != set(table.columns):
        odd = sorted(set(row) ^ set(table.columns))
        raise InternalCheckError("metrics", f"a row of table {table.name} differs in columns {odd}")
    cells = [row[column] for column in table.columns]
    return [model, *(f"{cell:.6f}" if isinstance(cell, float) else cell for cell in cells)]
