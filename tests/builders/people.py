"""Iceberg tables of people, published with records of their changes as the pipelines make them, but without Spark."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq

from lakeshare_server.catalog import Ledger, Publication
from lakeshare_server.tables import TableSnapshot, open_index, read_iceberg, write_index
from lakeshare_server.tables.iceberg.changes import StateChange, write_change_index
from tests.builders.canonical import Rows
from tests.builders.lake_tables import IcebergTable
from tests.builders.protocol_lines import Format
from tests.builders.protocol_reader import ProtocolReader, refusal
from tests.builders.sharing import Provider, a_server

TABLE = "lake.people"


def people(*ids: int, day: int = 1) -> pa.Table:
    return pa.table({"day": pa.array([day] * len(ids), pa.int64()), "id": pa.array(ids, pa.int64())})


def read(table: IcebergTable) -> TableSnapshot:
    state = table.state()
    return read_iceberg(state.metadata_location, state.snapshot_id)


def change_files(
    folder: Path, rows: list[tuple[int, int, str]], names_of: tuple[str, str] = ("day", "id")
) -> pa.Table:
    """Change files, one for each day, as the pipelines describe those that Spark wrote."""
    described = []
    for day in sorted({row[0] for row in rows}):
        ids, kinds = zip(*((one, kind) for its_day, one, kind in rows if its_day == day), strict=True)
        path = folder / "_changes" / "run" / f"{day}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        rows_of_day = people(*ids, day=day).rename_columns(list(names_of))
        pq.write_table(rows_of_day.append_column("_change_type", pa.array(kinds)), path)
        described.append((str(path), path.stat().st_size, 0, {"day": day}))
    columns = list(zip(*described, strict=True)) or [[], [], [], []]
    kinds_of = (pa.string(), pa.int64(), pa.int64(), pa.struct([("day", pa.int64())]))
    names = ("path", "size", "modification_time", "partition")
    return pa.table(
        {name: pa.array(values, kind) for name, values, kind in zip(names, columns, kinds_of, strict=True)}
    )


def publish(
    provider: Provider, table: IcebergTable, rows: list[tuple[int, int, str]] | None = None, **given: Any
) -> Publication:
    """Publish the newest state, with a record of its changes; `rows` are those of its change files."""
    state, snapshot = table.state(), read(table)
    latest = Ledger(provider.catalog).latest(TABLE)
    digest = write_index(snapshot, provider.settings.index_dir).digest
    change = StateChange(
        version=0 if latest is None else latest.version + 1,
        before=None if latest is None else open_index(provider.settings.index_dir, latest.index_digest),
        after=open_index(provider.settings.index_dir, digest),
        changed_at_ms=0,
        change_files=None
        if rows is None
        else change_files(
            Path(snapshot.location), rows, tuple(field.name for field in table.table.schema().fields)
        ),
        **given,
    )
    made_of = "" if latest is None else latest.index_digest, digest
    changes = write_change_index(change, made_of, provider.settings.index_dir)
    return provider.publish(
        TABLE, snapshot, metadata_location=state.metadata_location, changes_digest=changes
    )


@contextmanager
def a_reader(provider: Provider, fmt: Format = "delta") -> Iterator[ProtocolReader]:
    provider.share(TABLE, history=True)
    token = provider.recipient(f"r{fmt}")
    with (
        a_server(provider) as running,
        running.client(token) as client,
        httpx.Client(verify=False, timeout=30) as data,
    ):
        yield ProtocolReader(client, f"flights.{TABLE}", fmt, data)


def rows_at(reader: ProtocolReader, version: int) -> Rows:
    return reader.rows(reader.snapshot(version=version))


def refused(reader: ProtocolReader, start: int, end: int) -> str:
    asked = f"{reader.path}/changes?startingVersion={start}&endingVersion={end}"
    return str(refusal(reader.client.get(asked, headers=reader.headers()), 400)["message"])
