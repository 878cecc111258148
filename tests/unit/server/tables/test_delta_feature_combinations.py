"""Every combination of Delta's table features is read by two kernels, or refused before they see it.

A row of the table below is a protocol and the properties that go with it. What the server sends of it is written into a
log, as the official client does, and read by the kernel in that client and by delta-rs.
"""

import itertools
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import delta_kernel_rust_sharing_wrapper as kernel
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder

from lakeshare_server.errors import Unserveable
from lakeshare_server.protocol.lines import Capabilities, HeadLines, negotiate_format, negotiate_protocol
from lakeshare_server.tables.delta.files import from_actions
from lakeshare_server.tables.delta.snapshot import make_delta_head, require_known
from lakeshare_server.tables.serveability import CLIENTS, judge_serveability
from tests.builders.campaign import campaign_size
from tests.builders.deletion_vector import inline_descriptor

Action = dict[str, Any]
READER_WRITER = (
    *("columnMapping", "deletionVectors", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"),
    *("catalogManaged", "typeWidening", "typeWidening-preview", "variantType", "variantType-preview"),
    *("variantShredding", "variantShredding-preview", "geospatial"),
)
WRITER = (
    *("appendOnly", "invariants", "checkConstraints", "generatedColumns", "allowColumnDefaults"),
    *("changeDataFeed", "identityColumns", "rowTracking", "domainMetadata", "clustering"),
    *("inCommitTimestamp", "icebergCompatV1", "icebergCompatV2", "icebergCompatV3"),
    *("icebergWriterCompatV1", "icebergWriterCompatV3", "materializePartitionColumns"),
    *("checkpointProtection", "coordinatedCommits-preview", "collations-preview", "notKnownYet"),
)
SWITCHES = {
    "columnMapping": {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "2"},
    "deletionVectors": {"delta.enableDeletionVectors": "true"},
    "typeWidening": {"delta.enableTypeWidening": "true"},
    "typeWidening-preview": {"delta.enableTypeWidening": "true"},
    "variantShredding": {"delta.enableVariantShredding": "true"},
    "v2Checkpoint": {"delta.checkpointPolicy": "v2"},
    "appendOnly": {"delta.appendOnly": "true"},
    "changeDataFeed": {"delta.enableChangeDataFeed": "true"},
    "rowTracking": {"delta.enableRowTracking": "true"},
    "inCommitTimestamp": {"delta.enableInCommitTimestamps": "true"},
    "icebergCompatV1": {"delta.enableIcebergCompatV1": "true"},
    "icebergCompatV2": {"delta.enableIcebergCompatV2": "true"},
    "icebergCompatV3": {"delta.enableIcebergCompatV3": "true"},
    "icebergWriterCompatV1": {"delta.enableIcebergWriterCompatV1": "true"},
    "checkConstraints": {"delta.constraints.positive": "id > 0"},
}
PYTHON = next(client for client in CLIENTS if client.id == "python-delta")


@dataclass(frozen=True)
class Combination:
    """A table as its log has it: protocol, switches, and what its file and columns really use."""

    name: str
    protocol: Action
    properties: dict[str, str] = field(default_factory=dict)
    extra_type: str | None = None
    has_vector: bool = False

    @property
    def is_mapped(self) -> bool:
        """Whether its files have other names than its columns."""
        return self.properties.get("delta.columnMapping.mode", "none") != "none"


def a_protocol(reader: int, writer: int, readers: Sequence[str] | None, writers: Sequence[str]) -> Action:
    protocol: Action = {"minReaderVersion": reader, "minWriterVersion": writer}
    if readers is not None:
        protocol["readerFeatures"] = list(readers)
    if writer == 7:
        protocol["writerFeatures"] = list(writers)
    return protocol


def with_features(*features: str, are_on: bool) -> Iterator[Combination]:
    """Tables with these features, in every reader version that can have them, with and without column mapping."""
    for is_mapped in (False, True):
        if is_mapped and "columnMapping" in features:
            continue
        names = [*features, "columnMapping"] if is_mapped else list(features)
        switched = [*(features if are_on else ()), *(["columnMapping"] if is_mapped else ())]
        properties = {key: value for name in switched for key, value in SWITCHES.get(name, {}).items()}
        readers = [name for name in names if name in READER_WRITER]
        versions = [3] if set(readers) - {"columnMapping"} else ([2, 3] if readers else [1, 3])
        for reader in versions:
            name = f"{'+'.join(names)} {'on' if are_on else 'off'} reader {reader}"
            protocol = a_protocol(reader, 7, readers if reader == 3 else None, names)
            yield Combination(name, protocol, properties)


def legacy() -> Iterator[Combination]:
    for reader, writer in ((1, 1), (1, 2), (1, 3), (1, 4), (1, 5), (1, 6), (2, 5), (2, 6)):
        yield Combination(f"legacy {reader},{writer}", a_protocol(reader, writer, None, ()))
        if reader == 2:
            yield Combination(
                f"mapped {reader},{writer}", a_protocol(reader, writer, None, ()), SWITCHES["columnMapping"]
            )


def of_another_shape() -> Iterator[Combination]:
    """Protocols that some writer left behind although the specification wants another shape."""
    mapped = SWITCHES["columnMapping"]
    compat = {**mapped, **SWITCHES["icebergCompatV2"]}
    writers = ["columnMapping", "icebergCompatV2"]
    yield Combination("mapped, readers empty", a_protocol(3, 7, [], writers), compat)
    yield Combination(
        "mapped, in no list", a_protocol(3, 7, ["deletionVectors"], ["deletionVectors"]), compat
    )
    yield Combination(
        "mapped, readers only", a_protocol(3, 7, ["columnMapping"], ["icebergCompatV2"]), compat
    )
    yield Combination("mapped, reader 2, in no list", a_protocol(2, 7, None, ["icebergCompatV2"]), compat)
    yield Combination("mapped, reader 1", a_protocol(1, 7, None, writers), compat)
    yield Combination("mapped, legacy reader 1", a_protocol(1, 5, None, ()), mapped)
    yield Combination("mapping listed, not on, reader 1", a_protocol(1, 7, None, writers))
    yield Combination("vectors in writers only", a_protocol(3, 7, [], ["deletionVectors"]))
    yield Combination("vectors in writers only, reader 1", a_protocol(1, 7, None, ["deletionVectors"]))
    yield Combination("vectors, in no list", a_protocol(1, 2, None, ()), has_vector=True)
    yield Combination("writers not listed", {"minReaderVersion": 1, "minWriterVersion": 7})


def with_use() -> Iterator[Combination]:
    """Features that the files or the columns use."""
    for features in (("deletionVectors",), ("deletionVectors", "columnMapping")):
        properties = SWITCHES["columnMapping"] if "columnMapping" in features else {}
        protocol = a_protocol(3, 7, features, features)
        yield Combination(f"vectors with {features}", protocol, properties, has_vector=True)
    for kind in (
        "timestamp_ntz",
        "variant",
        "geometry(OGC:CRS84)",
        "void",
        "interval year",
        "time(6)",
        "char(5)",
    ):
        yield Combination(f"a column of {kind}, legacy", a_protocol(1, 2, None, ()), {}, kind)
    yield Combination(
        "a column of void, mapped", a_protocol(2, 5, None, ()), SWITCHES["columnMapping"], "void"
    )
    for feature, kind in (("timestampNtz", "timestamp_ntz"), ("variantType", "variant")):
        yield Combination(f"a column of {kind}", a_protocol(3, 7, [feature], [feature]), {}, kind)


SINGLE = [
    *legacy(),
    *of_another_shape(),
    *with_use(),
    *(
        one
        for feature in (*READER_WRITER, *WRITER)
        for are_on in (False, True)
        for one in with_features(feature, are_on=are_on)
        if not are_on or feature in SWITCHES
    ),
]
PAIRS = [
    one
    for pair in itertools.combinations((*READER_WRITER, *WRITER), 2)
    for are_on in (False, True)
    for one in with_features(*pair, are_on=are_on)
]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """A file with the names of the columns, and one with physical names and field ids."""
    folder = tmp_path_factory.mktemp("files")
    found = {}
    for is_mapped, names in ((False, ("id", "s")), (True, ("c1", "c2"))):
        columns = [pa.array([1, 2, 3], pa.int64()), pa.array(["a", "b", "c"])]
        fields = [
            pa.field(name, column.type, metadata={"PARQUET:field_id": str(place + 1)})
            for place, (name, column) in enumerate(zip(names, columns, strict=True))
        ]
        found[is_mapped] = folder / f"{names[0]}.parquet"
        pq.write_table(pa.table(columns, schema=pa.schema(fields)), found[is_mapped])
    return found


def metadata_of(one: Combination) -> Action:
    columns: list[Action] = [{"name": "id", "type": "long"}, {"name": "s", "type": "string"}]
    columns += [{"name": "x", "type": one.extra_type}] if one.extra_type else []
    for place, column in enumerate(columns, 1):
        mapping = {"delta.columnMapping.id": place, "delta.columnMapping.physicalName": f"c{place}"}
        column |= {"nullable": True, "metadata": mapping if one.is_mapped else {}}
    return {
        "id": "11111111-2222-3333-4444-555555555555",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": columns}),
        "partitionColumns": [],
        "configuration": one.properties,
        "createdTime": 1,
    }


def add_of(one: Combination, file: Path) -> Action:
    add: Action = {"path": file.as_uri(), "size": file.stat().st_size, "partitionValues": {}}
    add |= {"modificationTime": 1, "dataChange": True, "stats": '{"numRecords":3}'}
    return add | {"deletionVector": inline_descriptor([1])} if one.has_vector else add


def read_by_the_client(place: Path) -> pa.Table:
    interface = kernel.PythonInterface(place.as_uri())
    scan = kernel.ScanBuilder(kernel.Table(place.as_uri()).snapshot(interface)).build()
    return pa.Table.from_batches(scan.execute(interface))


def read_by_delta_rs(place: Path) -> pa.Table:
    found = QueryBuilder().register("t", DeltaTable(str(place))).execute("SELECT id, s FROM t")
    return pa.table(found.read_all())


READERS = (("the client's kernel", read_by_the_client), ("delta-rs", read_by_delta_rs))


def faults_of(one: Combination, file: Path, folder: Path) -> Iterator[str]:
    """What goes wrong with a combination, in the two kernels or in what serveability says of it."""
    metadata, add = metadata_of(one), add_of(one, file)
    try:
        require_known(one.protocol)
        head = make_delta_head(one.protocol, metadata, from_actions([add], []))
    except Unserveable as refusal:
        if not refusal.fix or refusal.code is None:
            yield f"{one.name}: refused without a fix: {refusal}"
        return
    promised = next(verdict for verdict in judge_serveability("delta", head) if verdict.id == PYTHON.id)
    wants = Capabilities(response_formats=frozenset({"delta"}), reader_features=PYTHON.features)
    try:
        negotiate_format(wants, head, "s.s.t")
    except Unserveable as refusal:
        if "Ask with" not in refusal.fix or promised.served_as:
            yield f"{one.name}: promised as {promised.served_as}, refused: {refusal}"
        return
    if promised.served_as != "delta":
        yield f"{one.name}: sent, but not promised"
    lines = HeadLines(response_format="delta", protocol=negotiate_protocol(wants, head))
    sent_protocol = json.loads(lines.protocol_line())["protocol"]["deltaProtocol"]
    sent_metadata = json.loads(lines.metadata_line(head))["metaData"]["deltaMetadata"]
    log = folder / "_delta_log" / f"{0:020}.json"
    log.parent.mkdir(parents=True)
    actions = [{"protocol": sent_protocol}, {"metaData": sent_metadata}, {"add": add}]
    log.write_text("".join(json.dumps(action) + "\n" for action in actions))
    wanted = [(1, "a"), (3, "c")] if one.has_vector else [(1, "a"), (2, "b"), (3, "c")]
    for reader, read in READERS:
        try:
            rows = read(folder)
        # The kernels raise classes of their own, and panics of Rust are no subclass of Exception.
        except BaseException as error:
            yield f"{one.name}: {reader} fails on {sent_protocol}: {str(error).splitlines()[0]}"
            continue
        found = sorted(zip(rows["id"].to_pylist(), rows["s"].to_pylist(), strict=True))
        if found != wanted:
            yield f"{one.name}: {reader} reads {found} by {sent_protocol}"


def faults_of_all(combinations: Sequence[Combination], files: dict[bool, Path], folder: Path) -> list[str]:
    return [
        fault
        for number, one in enumerate(combinations)
        for fault in faults_of(one, files[one.is_mapped], folder / str(number))
    ]


def test_every_feature_alone_and_with_column_mapping(files: dict[bool, Path], tmp_path: Path) -> None:
    assert len({one.name for one in SINGLE}) == len(SINGLE) > 150
    assert faults_of_all(SINGLE, files, tmp_path) == []


def some_at_random(count: int, seed: int) -> list[Combination]:
    """Tables with three to eight features each, switched on or not."""
    chance = random.Random(seed)
    found: list[Combination] = []
    while len(found) < count:
        features = chance.sample((*READER_WRITER, *WRITER), chance.randint(3, 8))
        found += with_features(*features, are_on=chance.random() < 0.5)
    return found[:count]


@pytest.mark.campaign
def test_many_features_at_once(files: dict[bool, Path], tmp_path: Path) -> None:
    assert faults_of_all(some_at_random(campaign_size(in_ci=40, in_campaign=2000), 16), files, tmp_path) == []


@pytest.mark.campaign
def test_features_in_pairs(files: dict[bool, Path], tmp_path: Path) -> None:
    count = campaign_size(in_ci=60, in_campaign=len(PAIRS))
    chosen = random.Random(16).sample(PAIRS, count)
    assert faults_of_all(chosen, files, tmp_path) == []
