"""The difference of a listing of 10 M objects to a point of 10 M takes at most twice DuckDB's full join of the two.

Run: `python -m bench.difference [--rows 10000000] [--turns 5]`. Both read the same Parquet files and write the rows
that are new, changed and gone, by turns in one run; the figure is the ratio of the medians. Ours is the SQL of plans:
DuckDB too, in bounded memory, with the table of each key and rows in order. Its memory is the most that this process
and its children have during our first turn, before the plain join.
"""

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import duckdb
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from lakeshare_pipelines.backup import model, plan
from lakeshare_pipelines.backup.model import LISTING, POINT_COPIES, write_rows

MOST, MOST_GIB = 2.0, 6.0
ROWS, TURNS = 10_000_000, 5
ROWS_A_FILE = 1_000_000
# One in a hundred is new, one in a hundred gone, two in a thousand have another ETag.
NEW, GONE, CHANGED = 100, 100, 500
KEY = (
    "'warehouse/sales.db/orders_' || (n % 37) || '/day=2026-' || lpad((n % 12 + 1)::varchar, 2, '0') || '-' || "
    "lpad((n % 28 + 1)::varchar, 2, '0') || '/part-' || lpad(n::varchar, 9, '0') || '-' || md5(n::varchar) || "
    "'.c000.snappy.parquet'"
)


def main() -> int:
    """Measure, print, and return the exit code."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--rows", type=int, default=ROWS)
    asked.add_argument("--turns", type=int, default=TURNS)
    arguments = asked.parse_args()
    with tempfile.TemporaryDirectory() as name:
        ours, theirs, most_bytes = measured(Path(name), arguments.rows, arguments.turns)
    ratio, gib = statistics.median(ours) / statistics.median(theirs), most_bytes / 1024**3
    print(
        f"difference of {arguments.rows:,} x {arguments.rows:,} objects: "
        f"{statistics.median(ours):.1f} s in {gib:.1f} GiB (at most {MOST_GIB}); DuckDB's full join "
        f"{statistics.median(theirs):.1f} s; ratio {ratio:.2f}, at most {MOST}"
    )
    return 0 if ratio <= MOST and gib <= MOST_GIB else 1


def planned(listed: Path, held: Path, into: Path) -> None:
    """Ours: whole rows that are fresh, keys of those that are gone."""
    with model.open_database(into) as on:
        for name, folder in (("cut", listed), ("before", held)):
            model.view_rows(on, name, folder)
        plan.compare_sides(on, ["warehouse/sales.db/orders_1"])
        gone = pa.schema([POINT_COPIES.field("key")])
        for name, schema in (("fresh", LISTING), ("gone", gone)):
            rows = on.sql(f"FROM {name} ORDER BY key").to_arrow_reader(plan.ROWS_AT_ONCE)
            write_rows(into / name, schema, rows)


def measured(folder: Path, rows: int, turns: int) -> tuple[list[float], list[float], int]:
    """Seconds of ours and of DuckDB's turns, and the most bytes of our first one."""
    listed, held = both_sides(folder, rows)
    ours, theirs, most_bytes = list[float](), list[float](), 0
    for turn in range(turns):
        into = folder / f"turn{turn}"
        into.mkdir()
        with memory() as used:
            ours.append(seconds(partial(planned, listed, held, into)))
        most_bytes = most_bytes or used[0]
        told = rows_in(into / "fresh"), rows_in(into / "gone")
        theirs.append(seconds(partial(plain_join, listed, held, into)))
        require_same(told, (rows_in(into / "duck_fresh"), rows_in(into / "duck_gone")))
        shutil.rmtree(into)
        print(f"turn {turn + 1}: {ours[-1]:.1f} s, DuckDB {theirs[-1]:.1f} s", file=sys.stderr)
    return ours, theirs, most_bytes


def both_sides(folder: Path, rows: int) -> tuple[Path, Path]:
    """A listing and what a point holds, with keys of about ninety characters, each as a folder of Parquet files."""
    listed, held = folder / "listed", folder / "held"
    for side, schema in ((listed, LISTING), (held, POINT_COPIES)):
        side.mkdir()
        for number, start in enumerate(range(0, rows, ROWS_A_FILE)):
            write_part(side / f"part-{number:05}.parquet", schema, start, min(start + ROWS_A_FILE, rows))
    return listed, held


def write_part(path: Path, schema: pa.Schema, start: int, end: int) -> None:
    """Rows of these numbers, without those that only the other side has."""
    is_held = schema is POINT_COPIES
    missing = f"n % {NEW} = 1" if is_held else f"n % {GONE} = 2"
    etag = (
        "md5('e' || n)" if is_held else f"md5('e' || n || case when n % {CHANGED} = 3 then 'x' else '' end)"
    )
    with duckdb.connect() as on:
        table = on.sql(
            f"select {KEY} as key, {etag} as etag, (n * 7919) % 200000000 as size_bytes "
            f"from range({start}, {end}) r(n) where not ({missing})"
        ).to_arrow_table()
    count = table.num_rows
    usual = {
        "bucket": pa.repeat("lake", count),
        "is_latest": pa.repeat(pa.scalar(True), count),
        "is_delete_marker": pa.repeat(pa.scalar(False), count),
        "last_modified": pa.repeat(pa.scalar(1_790_000_000_000), count),
        "stored_key": table["key"],
        "first_point": pa.repeat("2026-11-01", count),
        "level": pa.repeat(pa.scalar(2), count),
        "is_healed": pa.repeat(pa.scalar(False), count),
    }
    columns = usual | {name: table[name] for name in table.column_names}
    arrays = [columns.get(one.name, pa.nulls(count)) for one in schema]
    pq.write_table(pa.table(arrays, schema.names).cast(schema), path, compression="zstd")


def plain_join(listed: Path, held: Path, into: Path) -> None:
    """The peer: a full join on the key; it writes the same: whole rows that are fresh, keys of those that are gone."""
    with duckdb.connect() as on:
        on.sql(f"set threads = {os.cpu_count()}")
        on.sql(f"set temp_directory = '{into}'")
        on.sql(
            "create temp table odd as select l.*, h.key as held "
            f"from '{listed}/*.parquet' l full join '{held}/*.parquet' h on l.key = h.key "
            "where l.key is null or h.key is null or l.etag <> h.etag or l.size_bytes <> h.size_bytes"
        )
        for name, wanted in (("duck_fresh", "* exclude held"), ("duck_gone", "held")):
            (into / name).mkdir()
            side = "key" if name == "duck_fresh" else "held"
            on.sql(
                f"copy (select {wanted} from odd where {side} is not null) to '{into / name}/part.parquet'"
            )


def require_same(ours: tuple[int, int], theirs: tuple[int, int]) -> None:
    """End with a word when the two do not tell the same."""
    if ours != theirs:
        raise SystemExit(f"ours has {ours} new and gone rows, DuckDB {theirs}")


def rows_in(folder: Path) -> int:
    """How many rows a folder of Parquet files has."""
    return sum(pq.read_metadata(path).num_rows for path in folder.glob("*.parquet"))


def seconds(work: Callable[[], object]) -> float:
    """How long some work takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


@contextmanager
def memory() -> Iterator[list[int]]:
    """The most bytes this process and its children had during a `with` block, looked at ten times a second."""
    most, done = [0], threading.Event()

    def look() -> None:
        own = psutil.Process()
        while not done.wait(0.1):
            found = 0
            for process in (own, *own.children(recursive=True)):
                try:
                    found += process.memory_info().rss
                except psutil.NoSuchProcess:
                    continue
            most[0] = max(most[0], found)

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield most
    finally:
        done.set()
        watcher.join()


if __name__ == "__main__":
    sys.exit(main())
