"""Writing metric tables: `metric_table_NAME.csv` in the working directory, for the tables that are on."""

import csv
import fcntl
import io
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from gyrator.config import TABLES, Config
from gyrator.errors import InternalCheckError

Cell = str | int | float | None
Row = Mapping[str, Cell]


def add_rows(config: Config, name: str, rows: Callable[[], Iterable[Row]]) -> None:
    """Append rows to a table if it is on; otherwise `rows` is not even called.

    A float has 6 decimals and None is empty. Several processes may append to one file; the first writes the header.

    Raises: KeyError if no table has that name; InternalCheckError if a row has other columns than its table."""
    columns = TABLES[name]
    if name not in config.metrics:
        return
    found = []
    for row in rows():
        if odd := sorted(row.keys() ^ {*columns}):
            raise InternalCheckError("metrics", f"a row of table {name} differs in columns {odd}")
        cells = (row[column] for column in columns)
        found.append([config.model_name, *(f"{cell:.6f}" if isinstance(cell, float) else cell for cell in cells)])
    if found:
        _append(name, found)


def start_tables(config: Config) -> None:
    """Begin the tables that are on anew, with headers alone. For the process that starts those which add rows."""
    for name in config.metrics:
        _file(name).unlink(missing_ok=True)
        _append(name, [])


def _file(name: str) -> Path:
    return Path(f"metric_table_{name}.csv")


def _append(name: str, rows: Iterable[Iterable[Cell]]) -> None:
    with _file(name).open("a", encoding="utf-8", newline="") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        writer = csv.writer(stream, lineterminator="\n")
        if stream.seek(0, io.SEEK_END) == 0:
            writer.writerow(["model_name", *TABLES[name]])
        writer.writerows(rows)
