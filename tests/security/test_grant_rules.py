"""A recipient whose grant has a rule gets its rows by every door, and of all others nothing, not even their number.

What it gets is compared with what a recipient without a rule gets of the same table: filtered here, row by row.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

from tests.builders.canonical import Rows, same_rows
from tests.builders.grants import grant_to
from tests.builders.lake_tables import IcebergTable
from tests.builders.protocol_lines import Format
from tests.builders.protocol_reader import Answer, ProtocolReader
from tests.builders.recipients import Recipients
from tests.builders.sharing import Provider, Running, a_provider, a_server

FORMATS: tuple[Format, ...] = ("parquet", "delta")
TABLES = ("delta", "iceberg")
Holds = Callable[[dict[str, Any]], bool]


def rows_of(regions: str, first: int) -> pa.Table:
    """A row for each letter: e(u), u(s), a(sia), - for null."""
    names = {"e": "eu", "u": "us", "a": "asia", "-": None}
    numbers = range(first, first + len(regions))
    return pa.table(
        {
            "region": pa.array([names[one] for one in regions], pa.string()),
            "year": pa.array([2020 + number % 2 for number in numbers], pa.int32()),
            "number": pa.array(list(numbers), pa.int64()),
        }
    )


STEPS = (rows_of("eeuua-", 0), rows_of("ea", 10), rows_of("u-", 20))
PARTITIONED_BY = ["region", "year"]


def a_delta_table(location: Path) -> Path:
    """Versions 0 to 2 append; 3 to 5 change rows, which leaves change files, the last one from a region to another."""
    from deltalake import DeltaTable, write_deltalake

    for rows in STEPS:
        write_deltalake(
            location,
            rows,
            mode="append",
            partition_by=PARTITIONED_BY,
            configuration={"delta.enableChangeDataFeed": "true"},
        )
    DeltaTable(location).update(updates={"number": "number + 100"}, predicate="number < 4")
    DeltaTable(location).delete("number = 10 OR number = 104")
    DeltaTable(location).update(updates={"region": "'us'"}, predicate="number = 101")
    return location


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Provider:
    folder = tmp_path_factory.mktemp("rules")
    provider = a_provider(folder, page_files=3)
    location = a_delta_table(folder / "delta")
    for version in range(6):
        provider.publish_delta("lake.delta", location, version)
    made = IcebergTable(folder / "iceberg", STEPS[0].schema, partitioned_by=PARTITIONED_BY)
    for rows in STEPS:
        provider.publish_iceberg("lake.iceberg", made.append(rows))
    provider.share("lake.delta", "lake.iceberg", history=True)
    provider.recipient("everyone")
    return provider


@pytest.fixture(scope="module")
def server(provider: Provider) -> Iterator[Running]:
    with a_server(provider) as running:
        yield running


@dataclass(frozen=True)
class Readers:
    """The same table as a restricted recipient and as one without a rule read it."""

    own: ProtocolReader
    every: ProtocolReader

    def require(self, holds: Holds) -> None:
        """That each door tells the rows for which the rule holds, and no others."""
        versions = range(self.every.version() + 1)
        for version in versions:
            wanted = kept(self.every.rows(self.every.snapshot(version=version)), holds)
            for answer in self.snapshots(version):
                same_rows(self.own.rows(answer), wanted, f"version {version}")
        changes = kept(self.every.change_rows(self.every.changes(0)), holds)
        for answer in (self.own.changes(0), self.own.changes(0, maxFiles=1)):
            same_rows(self.own.change_rows(answer), changes, "changes")
        first, shape = self.own.snapshot(version=0), self.own.metadata().head.shape
        copy = self.own.replica(first, [self.own.window(1, maxFiles=1)], shape)
        same_rows(copy, kept(self.every.rows(self.every.snapshot()), holds), "a copy kept by windows")

    def snapshots(self, version: int) -> Iterator[Answer]:
        """A version by each of the ways to ask for it; `snapshot` compares the counts of the head with the lines."""
        asked = self.own.snapshot(version=version)
        yield asked
        told = self.own.metadata(version=version).head.outer
        assert (told["numFiles"], told["size"]) == totals(asked)
        yield self.own.pages(1, version=version)
        if version == self.own.version():
            # The worker looks at the rule when the answer is fetched, whichever version it has.
            yield self.own.submitted(version=version)
            yield self.own.refreshed(self.own.snapshot(includeRefreshToken=True))


def totals(answer: Answer) -> tuple[int, int]:
    return len(answer.files), sum(file.size for file in answer.files)


def kept(rows: Rows, holds: Holds) -> Rows:
    named = ((row, dict(zip(rows.names, json.loads(row), strict=True))) for row in rows.rows)
    return replace(rows, rows=tuple(row for row, values in named if holds(values)))


def readers_of(
    provider: Provider, server: Running, table: str, response_format: Format, token: str
) -> Readers:
    every = Recipients(provider.catalog).rotate("everyone")[1]
    data = httpx.Client(verify=False, timeout=30)
    own, other = (
        ProtocolReader(server.client(one), f"flights.lake.{table}", response_format, data)
        for one in (token, every)
    )
    return Readers(own, other)


@pytest.fixture(params=[(table, fmt) for table in TABLES for fmt in FORMATS], ids="-".join)
def readers(request: pytest.FixtureRequest, provider: Provider, server: Running) -> Iterator[Readers]:
    """A recipient of its own, named for the table and the format."""
    name = f"{'-'.join(request.param)}-{request.node.originalname}"
    made = readers_of(provider, server, *request.param, provider.recipient(name))
    yield made
    for reader in (made.own, made.every):
        reader.client.close()
    made.own.data.close()


def named(request: pytest.FixtureRequest) -> str:
    return f"{'-'.join(request.node.callspec.params['readers'])}-{request.node.originalname}"


RULES: tuple[tuple[str, Holds], ...] = (
    ("region = 'eu'", lambda row: row["region"] == "eu"),
    ("NOT region = 'eu'", lambda row: row["region"] not in ("eu", None)),
    ("region IS NULL", lambda row: row["region"] is None),
    (
        "region IN ('us', 'asia') AND year = 2020",
        lambda row: row["region"] in ("us", "asia") and row["year"] == 2020,
    ),
    ("region LIKE '%'", lambda row: row["region"] is not None),
    (
        "region LIKE 'a%' OR year > 2020",
        lambda row: row["year"] > 2020 or (row["region"] or "").startswith("a"),
    ),
    ("region = 'nowhere'", lambda row: False),
)


def test_rules_are_exact_by_every_door(
    readers: Readers, provider: Provider, request: pytest.FixtureRequest
) -> None:
    # Formats differ in their words alone.
    for rule, holds in RULES if readers.own.format == "delta" else RULES[:2]:
        grant_to(provider, named(request), rule=rule)
        readers.require(holds)
