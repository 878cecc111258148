"""Sets that read databases, tables, files and classes: each row once, from where the last publication ended."""

import itertools
import json
import socket
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from uuid import uuid4

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from lakeshare_pipelines.contracts import SetContract
from lakeshare_pipelines.errors import NotAudited, SourceError
from lakeshare_pipelines.ingest import sources
from lakeshare_pipelines.ingest.sources import Position
from lakeshare_pipelines.share import publication
from lakeshare_pipelines.share.publication import publish, publish_or_replay, rollback, unchanged_run
from lakeshare_pipelines.wap.audit import audit
from lakeshare_pipelines.wap.inputs import find_position
from lakeshare_pipelines.wap.stage import drop_staging_location, list_staging_locations, stage
from lakeshare_pipelines.wap.staged import Lake, Staged, read_quarantine
from lakeshare_server.catalog import Catalog, Ledger, Publication
from tests.builders.landing import avro_bytes
from tests.builders.main_state import rows_at_each_step
from tests.builders.sets import green
from tests.builders.sharing import a_provider, a_server
from tests.builders.source_sets import EVENTS, ORDERS, Shop, a_source_set, a_table

PASSWORD = "s3cret-of-the-shop"
NUMBERS = itertools.count(1)
MERGE = {"mode": "merge", "sequence": "updated_at", "deleteWhen": "is_deleted"}


@dataclass
class Reader:
    """Runs of a set with sources."""

    lake: Lake
    catalog: Catalog
    contract: SetContract

    def stage(self) -> Staged:
        return stage(self.lake, self.contract, ["all"], str(uuid4()))

    def run(self) -> list[Publication]:
        staged = self.stage()
        return publish_or_replay(self.lake, self.catalog, self.contract, staged, green(self.contract, staged))

    def rows(self, table: str) -> list[tuple[object, ...]]:
        return rows_at_each_step(self.lake, self.contract, table)

    def amounts(self) -> list[tuple[object, str]]:
        return [(row[0], str(row[1])) for row in self.rows("orders")]

    def is_unchanged(self) -> bool:
        return unchanged_run(self.lake, self.catalog, self.contract, ["all"]) is not None

    def position(self) -> Position:
        """The position of the first table."""
        position = find_position(Ledger(self.catalog), self.contract.tables[0].name)
        assert position is not None
        return position


@pytest.fixture(scope="module")
def shop(postgres) -> Iterator[Shop]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHOP_USER", "lakeshare")
        patch.setenv("SHOP_PASSWORD", PASSWORD)
        yield Shop(postgres.new_database())


@pytest.fixture
def read(lake, catalog, tmp_path):
    def make(*tables: str, **more: object) -> Reader:
        name = f"sourced{next(NUMBERS)}"
        return Reader(lake, catalog, a_source_set(tmp_path / "contracts", name, *tables, **more))

    return make


def test_a_database_is_merged_from_where_the_last_publication_ended(shop, read):
    orders = shop.jdbc(table="orders", incremental="updated_at", partitionBy="id", partitions=3)
    reader = read(a_table("orders", orders, ORDERS, MERGE))
    for number in range(1, 7):
        shop.order(number, f"{number}.50", number)
    assert [row.rows for row in reader.run()] == [6]
    assert reader.amounts() == [(number, f"{number}.50") for number in range(1, 7)]
    assert reader.is_unchanged()

    shop.order(1, "10.00", 10)
    shop.order(7, "7.50", 11)
    shop.order(2, "2.50", 12, deleted=True)
    assert not reader.is_unchanged()
    staged = reader.stage()
    assert staged.tables[0].rows == 3
    publish(reader.lake, reader.catalog, reader.contract, staged, green(reader.contract, staged))
    assert reader.amounts() == [(1, "10.00"), *((number, f"{number}.50") for number in range(3, 8))]


def test_rows_that_are_younger_than_the_lag_are_left_to_the_next_run(shop, read):
    shop.execute(
        "create table late as select 1::bigint as number, 'a'::text as note, timestamptz '2020-01-01' as at"
    )
    shop.execute("insert into late values (2, 'b', now())")
    columns = (*EVENTS, {"name": "at", "logicalType": "timestamp"})
    jdbc = shop.jdbc(table="late", incremental="at", lagS=3600)
    reader = read(a_table("events", jdbc, columns, "append"))
    reader.run()
    assert [row[:2] for row in reader.rows("events")] == [(1, "a")]
    assert reader.is_unchanged()
    # No row is old enough now: the watermark stays.
    shop.execute("delete from late where number = 1")
    assert reader.is_unchanged()


def test_only_a_publication_advances_the_position(shop, read, monkeypatch):
    query = "select number, note from events where note <> '' or note is null"
    reader = read(a_table("events", shop.jdbc(query=query, incremental="number"), EVENTS, "append"))
    shop.note("a")
    reader.run()
    assert reader.position()["watermark"] == "1"

    shop.execute("insert into events (note) values (null)")
    staged = reader.stage()
    verdicts = audit(reader.lake, reader.contract, staged)
    assert "not_be_null__note" in verdicts.blocking_names
    with pytest.raises(NotAudited):
        publish(reader.lake, reader.catalog, reader.contract, staged, verdicts)
    drop_staging_location(reader.lake, reader.contract, staged.ref)
    assert reader.position()["watermark"] == "1"
    shop.execute("update events set note = 'b' where note is null")

    # A crash between main and the ledger: the next run, staged before the repair, is computed again after it.
    with monkeypatch.context() as patch:
        patch.delattr(publication, "record_landed")
        with pytest.raises(NameError):
            reader.run()
    shop.note("c")
    reader.run()
    assert [row[1] for row in reader.rows("events")] == ["a", "b", "c"]
    assert reader.position()["watermark"] == "3"

    # A rollback takes the position back: the rows since then are read again, once.
    rollback(reader.lake, reader.catalog, reader.contract, reader.contract.table("events"), 0)
    assert reader.position()["watermark"] == "1"
    reader.run()
    assert [row[1] for row in reader.rows("events")] == ["a", "b", "c"]
    assert list_staging_locations(reader.lake, [reader.contract]) == []


def test_a_database_that_cannot_be_continued_is_refused(shop, read, monkeypatch):
    shop.execute("create table items as select 1::bigint as number, 'a'::text as note")
    items = shop.jdbc(table="items", incremental="number")
    reader = read(a_table("events", items, EVENTS, "append"))
    reader.run()

    shop.execute("insert into items values (null, 'x'), (2, 'y')")
    with pytest.raises(
        SourceError, match=r"1 rows have no value in the incremental column number\. Fill them"
    ):
        reader.stage()
    shop.execute("delete from items where true")
    assert reader.is_unchanged()
    shop.execute("insert into items values (0, 'restored')")
    with pytest.raises(
        SourceError, match=r"the largest number is 0, and rows up to 1 are published\. The data"
    ):
        reader.is_unchanged()

    changed = a_table("events", shop.jdbc(table="events", incremental="number"), EVENTS, "append")
    reader.contract = a_source_set(reader.contract.path.parent, reader.contract.name, changed)
    with pytest.raises(SourceError, match="its table, query or incremental column changed"):
        reader.stage()

    # The connection ends in the middle of the rows.
    ends = (
        "select n as number, case when n = 700 then pg_terminate_backend(pg_backend_pid())::text end as note"
    )
    jdbc = shop.jdbc(query=f"{ends} from generate_series(1, 900) n", fetchRows=100)
    broken = read(a_table("events", jdbc))
    with pytest.raises(
        SourceError, match=r"refused the connection or the query, or ended: .+ run again"
    ) as info:
        broken.stage()
    assert list_staging_locations(broken.lake, [broken.contract]) == []
    assert PASSWORD not in "".join(traceback.format_exception(info.value))
    monkeypatch.delenv("SHOP_PASSWORD")
    with pytest.raises(SourceError, match="the environment variable SHOP_PASSWORD is not set"):
        broken.stage()


def test_a_query_may_end_with_a_comment_and_a_partitioned_table_be_empty(shop, read):
    query = "select 1::bigint as number, 'a' as note -- of the shop"
    empty = shop.jdbc(query="select * from events where false", partitionBy="number", partitions=2)
    reader = read(a_table("one", shop.jdbc(query=query)), a_table("none", empty))
    assert [row.rows for row in reader.run()] == [1, 0]
    assert reader.rows("one") == [(1, "a")]


def test_what_cannot_be_read_is_named_with_its_cause(read, tmp_path, monkeypatch):
    module = f"sources_{uuid4().hex[:8]}"
    (tmp_path / f"{module}.py").write_text(WRONG_CLASSES)
    monkeypatch.syspath_prepend(str(tmp_path))
    contents = {"json": '{"number": 1\n', "parquet": "no", "avro": "no", "csv": "number,note\n1,a\n"}
    for kind, content in contents.items():
        (tmp_path / f"one.{kind}").write_text(content)

    def refusal(source: object) -> str:
        with pytest.raises(SourceError) as refused:
            read(a_table("events", source)).stage()
        return str(refused.value)

    def of_class(name: str, **options: object) -> str:
        return refusal({"python": {"class": f"{module}:{name}", "options": options}})

    def of_files(kind: str, folder: str = "") -> str:
        return refusal({"files": {"path": f"{tmp_path}{folder}/*.{kind}", "format": kind}})

    assert "its position is not JSON: Object of type set is not" in of_class("Source", kind="set")
    assert "its position is not JSON: Out of range float values" in of_class("Source", kind="number")
    assert "its position is not JSON: 'utf-8' codec can't encode" in of_class("Source", kind="text")
    assert "its position is not JSON: maximum recursion depth" in of_class("Source", kind="list")
    assert "cannot be read: AttributeError: 'list' object has no attribute" in of_class("NoFrame")
    assert "cannot be read: SystemExit: no licence" in of_class("Ends")
    assert "NoMethods has no is_repeatable, find_position, read." in of_class("NoMethods")
    assert "JsonEOFException: Unexpected end-of-input" in of_files("json")
    assert "one.parquet is not a Parquet file" in of_files("parquet")
    assert "InvalidAvroMagicException: Not an Avro data file" in of_files("avro")
    assert "there is no such file. Correct files.path, or put" in of_files("csv", "/none")
    find_position, found = sources.Files.find_position, list[Position]()

    def find_and_add(self: sources.Files, since: Position | None) -> Position:
        (tmp_path / "two.csv").write_text("number,note\n2,b\n" if found else "")
        found.append(find_position(self, since))
        return found[-1]

    monkeypatch.setattr(sources.Files, "find_position", find_and_add)
    assert "its files changed while they were read. Run again." in of_files("csv")


def test_a_table_of_others_is_read_at_its_newest_version(read, tmp_path):
    location = str(tmp_path / "theirs")
    write_deltalake(location, pa.table({"number": [1, 2], "note": ["a", "b"]}))
    reader = read(a_table("events", {"table": location}), table_format="iceberg")
    assert [row.rows for row in reader.run()] == [2]
    assert reader.is_unchanged()
    assert reader.position()["version"] == 0

    # A value that does not fit is rejected, as one of a delivered row is; another type is a problem of the structure.
    write_deltalake(
        location,
        pa.table({"number": [1.0, 2.5], "note": ["a", "b"]}),
        mode="overwrite",
        schema_mode="overwrite",
    )
    staged = reader.stage()
    assert (staged.tables[0].rows, staged.tables[0].rejected) == (1, 1)
    [rejected] = read_quarantine(reader.lake.settings, reader.contract.name, staged.run_id)
    assert (rejected["partition"], rejected["reason"]) == ("all", "number: '2.5' is not bigint")
    drop_staging_location(reader.lake, reader.contract, staged.ref)
    write_deltalake(
        location, pa.table({"number": ["x"], "extra": [1]}), mode="overwrite", schema_mode="overwrite"
    )
    staged = reader.stage()
    assert sorted(staged.tables[0].problems) == [
        "column 'extra' is not in the contract",
        "column 'note' is missing",
        "column 'number' is string, not bigint,",
    ]
    drop_staging_location(reader.lake, reader.contract, staged.ref)

    # An Iceberg table: the lake's own files serve as those of another catalog.
    published = Ledger(reader.catalog).latest(reader.contract.table("events").name)
    iceberg = read(a_table("events", {"table": published.metadata_location}))
    iceberg.run()
    assert iceberg.rows("events") == [(1, "a"), (2, "b")]


def test_a_table_of_a_foreign_share_is_read_by_its_profile(read, tmp_path, monkeypatch):
    location = str(tmp_path / "shared")
    rows = pa.table({"number": [1, 2], "note": ["a", "b"]})
    write_deltalake(location, rows)
    provider = a_provider(tmp_path)
    provider.publish_delta("lake.events", location)
    provider.share("lake.events", share="theirs")
    reader = read(a_table("events", {"share": {"profile": "THEIR_PROFILE", "table": "theirs.lake.events"}}))
    with pytest.raises(SourceError, match="the environment variable THEIR_PROFILE is not set"):
        reader.stage()
    with a_server(provider) as server:
        monkeypatch.setenv("THEIR_PROFILE", str(server.profile(provider.recipient(shares=("theirs",)))))
        reader.run()
        assert reader.rows("events") == [(1, "a"), (2, "b")]
        assert reader.is_unchanged()
        # In pandas a column of integers with a null is one of floats.
        unknown = pa.table({"number": pa.array([None], pa.int64()), "note": ["c"]})
        write_deltalake(location, unknown, mode="append")
        provider.publish_delta("lake.events", location)
        staged = reader.stage()
        assert (staged.tables[0].rows, staged.tables[0].problems) == (3, ())
        drop_staging_location(reader.lake, reader.contract, staged.ref)
        monkeypatch.setenv("THEIR_PROFILE", str(server.profile("x" * 40)))
        with pytest.raises(
            SourceError, match=r"its server refused it or does not respond \(HTTPError, status 401\)"
        ):
            reader.stage()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr(sources, "RESPONSE_S", 0.2)
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        profile = tmp_path / "silent.share"
        profile.write_text(
            json.dumps({"shareCredentialsVersion": 1, "endpoint": endpoint, "bearerToken": "x" * 40})
        )
        monkeypatch.setenv("THEIR_PROFILE", str(profile))
        with pytest.raises(SourceError, match=r"does not respond \(no response within 0\.2 seconds\)"):
            reader.stage()


def test_files_and_a_class_of_the_user_are_read(read, lake, tmp_path):
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "one.csv").write_text("number,note\n1,a\n")
    (folder / "one.txt").write_text("not read")
    (folder / "one.json").write_text('{"number": 2, "note": {"text": "b"}}\n')
    lake.spark.sql("select 3L as number, 'c' as note").write.orc(f"{folder}/orc")
    (folder / "one.avro").write_bytes(
        avro_bytes([{"number": 6, "note": "f"}], {"number": "bigint", "note": "string"})
    )
    (folder / "one.xml").write_text("<rows><row><number>4</number><note>d</note></row></rows>")
    module = f"sources_{uuid4().hex[:8]}"
    (tmp_path / f"{module}.py").write_text(CLASS)
    (tmp_path / f"{module}_ends.py").write_text("raise SystemExit('no licence')\n")
    reader = read(
        a_table("from_csv", {"files": {"path": f"{folder}/*.csv", "format": "csv"}}),
        a_table("from_json", {"files": {"path": f"{folder}/*.json", "format": "json"}}),
        a_table("from_orc", {"files": {"path": f"{folder}/orc/*.orc", "format": "orc"}}),
        a_table("from_avro", {"files": {"path": f"{folder}/*.avro", "format": "avro"}}),
        a_table(
            "from_xml", {"files": {"path": f"{folder}/*.xml", "format": "xml", "options": {"rowTag": "row"}}}
        ),
        a_table(
            "from_class", {"python": {"class": f"{module}:Counter", "options": {"size": 2}}}, EVENTS, "append"
        ),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(tmp_path))
        reader.run()
        assert reader.is_unchanged()
        (folder / "two.csv").write_text("number,note\n5,e\n")
        assert not reader.is_unchanged()
        broken = read(a_table("events", {"python": {"class": f"{module}:Counter", "options": {"size": "x"}}}))
        with pytest.raises(
            SourceError, match=rf"source {module}:Counter .* cannot be read: TypeError: .*find_position"
        ):
            broken.stage()
        missing = read(
            a_table(
                "events", {"python": {"class": f"{module}:FromFile", "options": {"size": f"{tmp_path}/no"}}}
            )
        )
        with pytest.raises(
            SourceError, match=rf"source {module}:FromFile .* cannot be read: FileNotFoundError"
        ):
            missing.stage()
        ending = read(a_table("events", {"python": {"class": f"{module}_ends:Counter"}}))
        with pytest.raises(SourceError, match=r"cannot be imported: SystemExit: no licence"):
            ending.stage()
    sys.modules.pop(module)
    assert reader.rows("from_csv") == [(1, "a")]
    assert reader.rows("from_json") == [(2, '{"text":"b"}')]
    assert reader.rows("from_orc") == [(3, "c")]
    assert reader.rows("from_avro") == [(6, "f")]
    assert reader.rows("from_xml") == [(4, "d")]
    assert reader.rows("from_class") == [(0, "zero"), (1, "one")]


CLASS = """
class Counter:
    is_repeatable = True

    def __init__(self, context, size):
        self.spark, self.size = context.spark, size

    def find_position(self, since):
        return {"number": self.size + 0}

    def read(self, since, until):
        first = since["number"] if since else 0
        numbers = self.spark.range(first, until["number"])
        return numbers.selectExpr("id AS number", "element_at(array('zero', 'one'), int(id) + 1) AS note")


class FromFile(Counter):
    def find_position(self, since):
        return {"text": open(self.size).read()}
"""
WRONG_CLASSES = """
LIST = []
for _ in range(100_000):
    LIST = [LIST]


class Source:
    is_repeatable = True

    def __init__(self, context, kind="none"):
        self.position = {"set": {1}, "number": float("nan"), "text": "\\udcff", "list": LIST, "none": None}[kind]

    def find_position(self, since):
        return {"at": self.position}


class NoFrame(Source):
    def read(self, since, until):
        return [1]


class Ends(Source):
    def read(self, since, until):
        raise SystemExit("no licence")


class NoMethods:
    def __init__(self, context):
        pass


Source.read = NoFrame.read
"""
