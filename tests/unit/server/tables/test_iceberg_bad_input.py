"""Iceberg tables that are not whole or not Iceberg's are refused with a reason that names the thing, never in part.

What is read row by row has tests of its own: manifests, files of deletes, footers.
"""

import gzip
import json
import re
import struct
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakeshare_server.catalog import Ledger
from lakeshare_server.errors import Unserveable
from lakeshare_server.tables import TableSnapshot, read_iceberg
from lakeshare_server.tables.iceberg import parsing
from lakeshare_server.tables.iceberg.metadata import NO_SNAPSHOT, MetadataError
from lakeshare_server.tables.iceberg.parsing import parse_metadata
from tests.builders.campaign import IS_CAMPAIGN
from tests.builders.iceberg_manifests import (
    SNAPSHOT,
    a_manifest,
    a_snapshot,
    a_told_table,
    an_entry,
    by_day,
    the_schema,
)
from tests.builders.lake_tables import IcebergTable, an_iceberg_table, some_rows
from tests.builders.sharing import FLIGHTS, a_provider, a_server, files

Change = Callable[[dict[str, Any]], object]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """The metadata file of a table of three files in as many partitions."""
    state = an_iceberg_table(tmp_path / "warehouse").state()
    return Path(state.metadata_location.removeprefix("file://"))


def read(metadata: Path, snapshot_id: int | None = None) -> TableSnapshot:
    if snapshot_id is None:
        snapshot_id = json.loads(metadata.read_text())["current-snapshot-id"]
    return read_iceberg(str(metadata), snapshot_id)


def changed(metadata: Path, change: Change) -> Path:
    told = json.loads(metadata.read_text())
    change(told)
    metadata.write_text(json.dumps(told))
    return metadata


def refused(metadata: Path, snapshot_id: int) -> str:
    with pytest.raises(Unserveable) as refusal:
        read_iceberg(str(metadata), snapshot_id)
    said = str(refusal.value)
    assert metadata.name in said
    assert "Traceback" not in said
    return said


def test_version_1_may_have_its_schema_and_partition_spec_only_in_lists(table: Path) -> None:
    """Iceberg's own reader takes such metadata, which some writers make."""
    before = read(table)
    old = changed(table, lambda told: told.update({"format-version": 1}))
    assert not {"schema", "partition-spec"} & json.loads(old.read_text()).keys()
    assert read(old).head == before.head
    snapshot = json.loads(old.read_text())["current-snapshot-id"]
    assert "missing" in refused(changed(old, lambda told: told.pop("current-schema-id")), snapshot)


@pytest.mark.parametrize("version", [0, 4, 99, "2", 2.5, None])
def test_an_unknown_format_version_is_named(table: Path, version: object) -> None:
    snapshot_id = read(table).snapshot_id
    said = refused(changed(table, lambda told: told.update({"format-version": version})), snapshot_id)
    shown = version if isinstance(version, int) else "not said"
    assert f"its format version is {shown}, this server knows 1 to 3" in said


def test_metadata_that_is_cut_off_anywhere_is_refused(table: Path) -> None:
    snapshot_id, content = read(table).snapshot_id, table.read_bytes()
    for whole in (content, gzip.compress(content)):
        table.write_bytes(whole)
        assert read_iceberg(str(table), snapshot_id).files.num_rows == 3
        for length in range(0, len(whole), 61):
            table.write_bytes(whole[:length])
            assert "no JSON" in refused(table, snapshot_id)


@pytest.mark.parametrize(
    ("part", "wrong", "said"),
    [
        ("snapshots", {"a": 1}, "another type|its field snapshots"),
        ("snapshots", [5], "its field snapshots.0"),
        ("schemas", "x", "its field schemas"),
        ("current-schema-id", "none", "its field current-schema-id"),
        ("current-schema-id", 77, "contradict|lacks a part|its field"),
        ("partition-specs", [{"spec-id": 0, "fields": [{"transform": "bucket[x]"}]}], "it lacks a part"),
        ("location", None, "its field location"),
        ("table-uuid", "no-uuid", "its field table-uuid"),
    ],
)
def test_a_part_of_another_type_is_named(table: Path, part: str, wrong: object, said: str) -> None:
    snapshot_id = read(table).snapshot_id
    assert re.search(said, refused(changed(table, lambda told: told.update({part: wrong})), snapshot_id))


OTHER_TYPES: list[Any] = ["x", -1, [], {}, True]


def places(part: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something stands in a JSON document."""
    inner = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
    for key, value in inner:
        yield (*path, key)
        yield from places(value, (*path, key))


@pytest.mark.campaign
def test_a_value_of_another_type_is_read_or_refused_without_another_error(table: Path) -> None:
    """Each part of the metadata in turn is null, or of other types: of some in CI, of all in the campaign."""
    snapshot_id, told = read(table).snapshot_id, json.loads(table.read_text())
    read_again = refusals = 0
    for number, path in enumerate(places(told)):
        others = OTHER_TYPES if IS_CAMPAIGN else [OTHER_TYPES[number % len(OTHER_TYPES)]]
        for wrong in (None, *others):
            broken = deepcopy(told)
            *way, last = path
            part = broken
            for key in way:
                part = part[key]
            part[last] = wrong
            table.write_text(json.dumps(broken))
            try:
                # No fewer files, whatever else was taken for true.
                assert read_iceberg(str(table), snapshot_id).files.num_rows == 3, (path, wrong)
                read_again += 1
            except Unserveable:
                refusals += 1
    assert min(read_again, refusals) > 50


def test_a_snapshot_that_is_not_there_is_named(table: Path) -> None:
    with pytest.raises(Unserveable, match=r"has no snapshot 77"):
        read_iceberg(str(table), 77)


def test_an_unknown_transform_rules_nothing_out(tmp_path: Path) -> None:
    """Iceberg spec, "Partition Transforms": readers pass over transforms that they do not know."""
    entries = [an_entry(number, snapshot_id=1) for number in (1, 2)]
    location = Path(a_told_table(tmp_path, the_schema(), by_day(), entries))
    changed(location, lambda told: told["partition-specs"][0]["fields"][0].update(transform="zorder[4]"))
    files = read(location, SNAPSHOT)
    assert (files.files.num_rows, files.head.partition_columns) == (2, ())
    assert files.files.column("min").combine_chunks().field("at").null_count == 2


def test_a_type_that_was_dropped_long_ago_hinders_nobody(table: Path) -> None:
    def with_older_schema(told: dict[str, Any]) -> None:
        odd = {"id": 90, "name": "odd", "required": False, "type": "hologram(3)"}
        nested = {"id": 91, "name": "in", "required": False, "type": {"type": "struct", "fields": [odd]}}
        older = {**told["schemas"][0], "schema-id": 8, "fields": [*told["schemas"][0]["fields"], nested]}
        told["schemas"].append(older)

    assert read(changed(table, with_older_schema)).files.num_rows == 3


def test_metadata_in_gzip_is_read_whatever_it_is_called(table: Path) -> None:
    plain = read(table)
    table.write_bytes(gzip.compress(table.read_bytes()))
    assert read_iceberg(str(table), plain.snapshot_id or 0).files.equals(plain.files)


def test_manifests_may_be_named_in_the_snapshot_itself(tmp_path: Path) -> None:
    """Iceberg spec, v1: `manifests` instead of `manifest-list`; each says its own spec."""
    location = Path(a_told_table(tmp_path, the_schema(), by_day(), [an_entry(1, snapshot_id=1)]))
    listed = read(location, SNAPSHOT)
    spec = parse_metadata(location.read_bytes(), SNAPSHOT).spec()
    paths = []
    for number in (1, 2):
        manifest = tmp_path / f"v1-{number}.avro"
        a_manifest(manifest, [an_entry(number, snapshot_id=1)], version=1, spec=spec)
        paths.append(str(manifest))

    def into_v1(told: dict[str, Any]) -> None:
        told["format-version"], told["schema"] = 1, told["schemas"][0]
        told["partition-spec"] = told["partition-specs"][0]["fields"]
        del told["snapshots"][0]["manifest-list"]
        told["snapshots"][0]["manifests"] = paths

    changed(location, into_v1)
    inside = read(location, SNAPSHOT)
    assert inside.files.slice(0, 1).equals(listed.files)
    assert inside.files.column("rows").to_pylist() == [10, 20]
    Path(paths[1]).unlink()
    with pytest.raises(Unserveable, match=r"The manifest .*v1-2\.avro of snapshot 77 .* cannot be read"):
        read(location, SNAPSHOT)
    changed(location, lambda told: told["snapshots"][0].update(manifests=paths[:1], summary=a_summary(2)))
    with pytest.raises(Unserveable, match=r"have 1 data files, the snapshot's summary says 2"):
        read(location, SNAPSHOT)


def a_summary(data_files: int) -> dict[str, str]:
    return {"operation": "append", "total-data-files": str(data_files)}


def test_a_list_with_fewer_files_than_the_summary_says_is_refused(tmp_path: Path) -> None:
    """What is left of a list that was cut off between two blocks is a whole list."""
    location = Path(a_told_table(tmp_path, the_schema(), by_day(), [an_entry(1, snapshot_id=1)]))
    changed(location, lambda told: told["snapshots"][0].update(summary=a_summary(1)))
    assert read(location, SNAPSHOT).files.num_rows == 1
    changed(location, lambda told: told["snapshots"][0].update(summary=a_summary(2)))
    with pytest.raises(Unserveable, match=r"list\.avro of snapshot 77.* the snapshot's summary says 2"):
        read(location, SNAPSHOT)


def test_manifests_of_a_spec_that_is_not_there_are_refused(tmp_path: Path) -> None:
    location = Path(a_told_table(tmp_path, the_schema(), by_day(), [an_entry(1, snapshot_id=1)]))
    a_snapshot(tmp_path, [a_manifest(tmp_path / "m.avro", [an_entry(1, snapshot_id=1)])], partition_spec_id=7)
    with pytest.raises(Unserveable, match=r"is partitioned by the spec 7, which its metadata does not have"):
        read(location, SNAPSHOT)


def test_version_1_may_leave_out_which_partition_spec_is_the_default(tmp_path: Path) -> None:
    """Iceberg spec, "Table Metadata Fields", `default-spec-id`. It counts where there are no files: the newest one."""
    made = IcebergTable(tmp_path, some_rows().schema)
    old = Path(made.table.metadata_location.removeprefix("file://"))
    field = {"name": "p", "transform": "identity", "field-id": 1000}
    specs = [{"spec-id": spec, "fields": [field | {"source-id": spec}]} for spec in (2, 1)]
    changed(old, lambda told: told.update({"format-version": 1, "partition-specs": specs}))
    changed(old, lambda told: told.pop("default-spec-id"))
    columns = [field.name for field in made.table.schema().fields]
    assert read(old, NO_SNAPSHOT).head.partition_columns == (columns[1],)
    changed(old, lambda told: told.update({"default-spec-id": 7}))
    with pytest.raises(Unserveable, match=r"is partitioned by the spec 7"):
        read(old, NO_SNAPSHOT)


@pytest.mark.parametrize("counts", [{"added_files_count": 2}, {"added_rows_count": 11}])
def test_a_manifest_with_other_counts_than_its_list_says_is_refused(
    tmp_path: Path, counts: dict[str, int]
) -> None:
    location = Path(a_told_table(tmp_path, the_schema(), by_day(), [an_entry(1, snapshot_id=1)]))
    a_snapshot(tmp_path, [a_manifest(tmp_path / "m.avro", [an_entry(1, snapshot_id=1)])], **counts)
    with pytest.raises(Unserveable, match=r"m\.avro .*its manifest list says (2|11)"):
        read(location, SNAPSHOT)


def test_the_list_of_another_snapshot_is_refused(tmp_path: Path) -> None:
    made = an_iceberg_table(tmp_path)
    first = made.table.current_snapshot()
    state = made.append(some_rows())
    Path(made.table.current_snapshot().manifest_list.removeprefix("file://")).write_bytes(
        Path(first.manifest_list.removeprefix("file://")).read_bytes()
    )
    with pytest.raises(Unserveable, match=r"it is the manifest list of another snapshot"):
        read_iceberg(state.metadata_location, state.snapshot_id)


def test_a_file_that_is_listed_twice_is_named(tmp_path: Path) -> None:
    entries = [an_entry(1, snapshot_id=1), an_entry(2, snapshot_id=1), an_entry(2, snapshot_id=1)]
    location = Path(a_told_table(tmp_path, the_schema(), by_day(), entries))
    with pytest.raises(
        Unserveable, match=r"lists s3://lake/t/2\.parquet more than once.*\[DUPLICATE_FILES\]"
    ):
        read(location, SNAPSHOT)


@pytest.mark.parametrize("what", ["data", "deletes", "manifest", "list"])
def test_what_is_encrypted_is_refused_by_name(tmp_path: Path, what: str) -> None:
    from pyiceberg.manifest import DataFileContent

    entries = [an_entry(1, snapshot_id=1, key_metadata=b"key" if what == "data" else None)]
    location = Path(a_told_table(tmp_path, the_schema(), by_day(), entries))
    if what == "deletes":
        delete = an_entry(9, content=DataFileContent.POSITION_DELETES, key_metadata=b"key")
        spec = parse_metadata(location.read_bytes(), SNAPSHOT).spec()
        manifests = [
            a_manifest(tmp_path / "m.avro", entries, spec=spec),
            a_manifest(tmp_path / "d.avro", [delete], deletes=True, spec=spec),
        ]
        a_snapshot(tmp_path, manifests)
    for name in {"manifest": ["m.avro"], "list": ["list.avro"]}.get(what, []):
        (tmp_path / name).write_bytes(b"AGS1" + struct.pack("<I", 1 << 20) + b"unreadable")
    with pytest.raises(Unserveable, match=r"encrypted.*Share a copy.*\[ENCRYPTED_FILES\]"):
        read(location, SNAPSHOT)


def test_a_publication_that_cannot_be_read_leaves_the_last_one(tmp_path: Path) -> None:
    provider, made = a_provider(tmp_path / "provider"), an_iceberg_table(tmp_path / "warehouse")
    provider.publish_iceberg("lake.flights", made.state())
    provider.share("lake.flights")
    manifest_lists = {one.manifest_list for one in made.table.snapshots()}
    state = made.append(some_rows())
    for manifest_list in {made.table.current_snapshot().manifest_list} - manifest_lists:
        Path(manifest_list.removeprefix("file://")).write_bytes(b"Obj\x01")
    with a_server(provider) as server, server.client(provider.recipient()) as client:
        before = client.post(f"{FLIGHTS}/query", json={})
        with pytest.raises(Unserveable, match="it is cut off"):
            provider.publish_iceberg("lake.flights", state)
        after = client.post(f"{FLIGHTS}/query", json={})
        assert [one["id"] for one in files(after)] == [one["id"] for one in files(before)]
        assert len(files(after)) == 3
        assert after.headers["Delta-Table-Version"] == "0"
    assert [one.version for one in Ledger(provider.catalog).history("lake.flights")] == [0]


def test_files_elsewhere_are_refused_by_the_place_until_it_is_allowed(tmp_path: Path) -> None:
    """Who writes the metadata is not the operator of the server, whose disk it may name."""
    made, elsewhere = an_iceberg_table(tmp_path / "warehouse"), tmp_path / "elsewhere"
    elsewhere.mkdir()
    with made.table.transaction() as change:
        change.set_properties({"write.data.path": elsewhere.as_uri()})
    state = made.append(some_rows())
    provider = a_provider(tmp_path / "provider")
    provider.publish_iceberg("lake.flights", state)
    provider.share("lake.flights")
    token = provider.recipient()
    with a_server(provider) as server, server.client(token) as client:
        answer = client.post(f"{FLIGHTS}/query", json={})
    assert answer.status_code == 400
    assert "which is not the store it is in itself" in answer.json()["message"]
    allowed = provider.settings.model_copy(update={"files_also_in": str(elsewhere)})
    with a_server(type(provider)(allowed, provider.catalog)) as server, server.client(token) as client:
        assert len(files(client.post(f"{FLIGHTS}/query", json={}))) == 6


def test_summaries_of_other_snapshots_are_not_looked_at(table: Path) -> None:
    """Metadata of 100 MB is mostly these: what nobody asks for may be whatever it is, and costs nothing."""
    told = json.loads(table.read_text())
    snapshot = told["snapshots"][0]
    others = [{**snapshot, "snapshot-id": number, "summary": "gone"} for number in range(1, 300)]
    told["snapshots"] += others
    told["metadata-log"] = "gone"
    assert len(parse_metadata(json.dumps(told).encode(), snapshot["snapshot-id"]).snapshots) == 300
    with pytest.raises(MetadataError, match=r"its field snapshots\.1\.summary"):
        parse_metadata(json.dumps(told).encode(), 1)


@pytest.mark.parametrize("packed", [False, True])
def test_longer_files_than_anybody_has_are_not_taken_apart(
    table: Path, monkeypatch: pytest.MonkeyPatch, packed: bool
) -> None:
    """Also a few bytes of gzip that are gigabytes unpacked."""
    snapshot_id = read(table).snapshot_id or 0
    monkeypatch.setattr(parsing, "MAX_METADATA_BYTES", 1 << 20)
    content = table.read_bytes() + b" " * (2 << 20)
    table.write_bytes(gzip.compress(content) if packed else content)
    assert "it is longer than 1 MiB; expire snapshots" in refused(table, snapshot_id)


def test_rows_of_no_columns_are_no_table(tmp_path: Path) -> None:
    made = an_iceberg_table(tmp_path, pa.table({"n": [1]}), partitioned_by=())
    location = Path(made.table.metadata_location.removeprefix("file://"))
    snapshot_id = made.state().snapshot_id
    changed(location, lambda told: told["schemas"][0].update(fields="n"))
    refused(location, snapshot_id)
