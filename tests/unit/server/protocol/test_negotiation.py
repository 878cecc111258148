"""The response format: parquet for what it can carry, delta for whoever announced all that the table needs, else 400.

Row by row of protocol §2.4 and §2.5.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from lakeshare_server.errors import BadRequest, Unserveable
from lakeshare_server.protocol.lines import (
    Capabilities,
    negotiate_format,
    negotiate_protocol,
    parse_capabilities,
)
from lakeshare_server.tables.delta.files import from_actions
from lakeshare_server.tables.delta.snapshot import make_delta_head
from lakeshare_server.tables.snapshot import TableHead
from tests.builders.lake_tables import a_delta_table, an_iceberg_table, some_rows
from tests.builders.sharing import Provider, a_provider, a_server, lines

PARQUET = "responseformat=parquet"
DELTA = "responseformat=delta"
EITHER = "responseformat=parquet,delta"
SPARK = (
    "readerfeatures=deletionVectors,columnMapping,timestampNtz,typeWidening-preview,typeWidening,variantType"
)
PYTHON = "readerfeatures=deletionvectors,columnmapping,timestampntz"
INLINE = {"storageType": "i", "pathOrInlineDv": "wi5b=", "sizeInBytes": 4, "cardinality": 1}


@dataclass(frozen=True)
class Table:
    """A Delta table as its log tells it; `needs` are the reader features this snapshot cannot do without."""

    needs: tuple[str, ...] = ()
    readers: tuple[str, ...] | None = None
    writers: tuple[str, ...] = ("appendOnly",)
    versions: tuple[int, int] = (3, 7)
    properties: dict[str, str] = field(default_factory=dict)
    type: Any = "string"
    column: dict[str, Any] = field(default_factory=dict)
    add: dict[str, Any] = field(default_factory=dict)
    parquet: bool = False
    reason: str = ""

    @property
    def head(self) -> TableHead:
        protocol: dict[str, Any] = {
            "minReaderVersion": self.versions[0],
            "minWriterVersion": self.versions[1],
        }
        if self.readers is not None:
            protocol["readerFeatures"] = list(self.readers)
            protocol["writerFeatures"] = [*self.readers, *self.writers]
        column = {"name": "c", "type": self.type, "nullable": True, "metadata": {}, **self.column}
        metadata = {
            "id": "id",
            "schemaString": json.dumps({"type": "struct", "fields": [column]}),
            "partitionColumns": [],
            "configuration": self.properties,
        }
        add = {"path": "p", "size": 1, "modificationTime": 0, "partitionValues": {}, **self.add}
        return make_delta_head(protocol, metadata, from_actions([add], []))


MAPPED = {"delta.columnMapping.mode": "name"}
VECTORS_ON = {"delta.enableDeletionVectors": "true"}
WIDENED = {"metadata": {"delta.typeChanges": [{"fromType": "short", "toType": "integer"}]}}
TABLES = {
    "a plain table": Table(versions=(1, 2), parquet=True),
    "writer features only": Table(versions=(1, 7), parquet=True),
    "reader features without need": Table(readers=("deletionVectors", "columnMapping"), parquet=True),
    "deletion vectors": Table(
        ("deletionVectors",), ("deletionVectors",), add={"deletionVector": INLINE}, reason="on 1 files"
    ),
    "deletion vectors left over": Table(
        ("deletionVectors",),
        ("deletionVectors",),
        properties={"delta.enableDeletionVectors": "false"},
        add={"deletionVector": INLINE},
        reason="on 1 files",
    ),
    "deletion vectors switched on": Table(
        ("deletionVectors",), ("deletionVectors",), properties=VECTORS_ON, reason="switched on"
    ),
    "deletion vectors switched on in vain": Table(versions=(1, 2), properties=VECTORS_ON, parquet=True),
    "column mapping by name": Table(
        ("columnMapping",), ("columnMapping",), properties=MAPPED, reason="in mode name"
    ),
    "column mapping by id": Table(
        ("columnMapping",),
        ("columnMapping",),
        properties={"delta.columnMapping.mode": "id"},
        reason="in mode id",
    ),
    "column mapping as of old": Table(
        ("columnMapping",), versions=(2, 5), properties=MAPPED, reason="in mode name"
    ),
    "column mapping of mode none": Table(
        readers=("columnMapping",), properties={"delta.columnMapping.mode": "none"}, parquet=True
    ),
    "timestamps without a zone": Table(
        ("timestampNtz",), ("timestampNtz",), type="timestamp_ntz", reason="column c"
    ),
    "one in an array": Table(
        ("timestampNtz",),
        ("timestampNtz",),
        type={"type": "array", "elementType": "timestamp_ntz", "containsNull": True},
        reason="column c.element",
    ),
    "widened types": Table(
        ("typeWidening",), ("typeWidening",), type="integer", column=WIDENED, reason="was widened"
    ),
    "widened types, previewed": Table(
        ("typeWidening-preview",),
        ("typeWidening-preview",),
        type="integer",
        column=WIDENED,
        reason="was widened",
    ),
    "types that may be widened": Table(
        readers=("typeWidening",), properties={"delta.enableTypeWidening": "true"}, parquet=True
    ),
    "variants": Table(("variantType",), ("variantType",), type="variant", reason="has variants"),
    "variants, previewed": Table(
        ("variantType-preview",), ("variantType-preview",), type="variant", reason="has variants"
    ),
    "geometries": Table(
        ("geospatial",), ("geospatial",), type="geometry(OGC:CRS84)", reason="geometry\\(OGC:CRS84\\)"
    ),
    "v2 checkpoints": Table(
        readers=("v2Checkpoint",), properties={"delta.checkpointPolicy": "v2"}, parquet=True
    ),
    "a vacuum check": Table(readers=("vacuumProtocolCheck",), parquet=True),
    "a managing catalog": Table(readers=("catalogManaged",), parquet=True),
    "several": Table(
        ("columnMapping", "deletionVectors", "timestampNtz"),
        ("timestampNtz", "deletionVectors", "columnMapping", "v2Checkpoint"),
        properties={**MAPPED, **VECTORS_ON},
        type="timestamp_ntz",
        reason="in mode name",
    ),
}
NEEDY = [name for name, table in TABLES.items() if table.needs]
SIMPLE = [name for name, table in TABLES.items() if table.parquet]


def announced(*parts: str) -> Capabilities:
    return parse_capabilities(";".join(parts))


def all_of(table: Table) -> str:
    return "readerfeatures=" + ",".join(feature.upper() for feature in table.needs)


def test_every_table_is_simple_or_needy() -> None:
    assert set(NEEDY) | set(SIMPLE) == set(TABLES)
    assert not set(NEEDY) & set(SIMPLE)


@pytest.mark.parametrize("header", ["", PARQUET, EITHER, "responseformat=delta,parquet", "readerfeatures=x"])
@pytest.mark.parametrize("name", SIMPLE)
def test_what_parquet_can_carry_goes_out_in_it_unless_delta_alone_is_taken(name: str, header: str) -> None:
    """protocol §2.5.2, §2.5.4, §2.4."""
    assert negotiate_format(announced(header), TABLES[name].head, "s.s.t") == "parquet"


@pytest.mark.parametrize("name", SIMPLE)
def test_whoever_takes_delta_only_gets_it_without_announcing_what_is_not_needed(name: str) -> None:
    """protocol §2.5.3: obeyed, and every reader feature the client lacks is dropped from what it is told."""
    head = TABLES[name].head
    assert negotiate_format(announced(DELTA), head, "s.s.t") == "delta"
    told = negotiate_protocol(announced(DELTA), head)
    assert not told.reader_features
    if told.writer_features is not None:
        assert set(told.writer_features) == ({"appendOnly"} if TABLES[name].readers is not None else set())
    assert (told.min_reader_version, told.min_writer_version) == TABLES[name].versions


@pytest.mark.parametrize("header", ["", PARQUET, f"{PARQUET};{SPARK}", "asyncquery=true"])
@pytest.mark.parametrize("name", NEEDY)
def test_what_parquet_cannot_carry_is_refused_to_whoever_takes_only_that(name: str, header: str) -> None:
    """protocol §2.5.2: the fragment of upstream's tests, the reason, the missing features and the way out."""
    table = TABLES[name]
    with pytest.raises(
        Unserveable, match=rf"^Unsupported Delta Table Properties: s\.s\.t .*{table.reason}"
    ) as no:
        negotiate_format(announced(header), table.head, "s.s.t")
    for feature in table.needs:
        assert feature.lower() in no.value.fix
    assert "responseformat=delta" in no.value.fix


@pytest.mark.parametrize("header", [DELTA, EITHER])
@pytest.mark.parametrize("name", NEEDY)
def test_delta_needs_every_feature_announced_and_no_other(name: str, header: str) -> None:
    """protocol §2.5.3, §2.5.4: in any case; each missing one is named, those announced are not."""
    table = TABLES[name]
    assert negotiate_format(announced(header, all_of(table)), table.head, "s.s.t") == "delta"
    for missing in table.needs:
        others = [feature for feature in table.needs if feature != missing]
        with pytest.raises(Unserveable, match=r"^Unsupported Delta Table Properties: ") as no:
            negotiate_format(announced(header, "readerfeatures=" + ",".join(others)), table.head, "s.s.t")
        assert no.value.reason.endswith(f"did not announce the reader features {missing}.")


@pytest.mark.parametrize("name", NEEDY)
def test_needed_features_stay_announced(name: str) -> None:
    """protocol §2.2: a truthful protocol, with all that is needed and nothing of the log's own."""
    table = TABLES[name]
    told = negotiate_protocol(announced(DELTA, all_of(table)), table.head)
    if table.readers is None:
        assert (told.reader_features, told.writer_features) == (None, None)
    else:
        assert set(told.reader_features or ()) == set(table.needs)
        assert set(told.writer_features or ()) == {*table.needs, "appendOnly"}


def test_features_that_are_not_needed_but_announced_stay() -> None:
    head = TABLES["reader features without need"].head
    assert negotiate_protocol(announced(DELTA, PYTHON), head).reader_features == (
        "deletionVectors",
        "columnMapping",
    )


@pytest.mark.parametrize(
    ("client", "served"),
    [
        (f"{EITHER};{SPARK}", set(TABLES) - {"variants, previewed", "geometries"}),
        (
            f"{EITHER};{PYTHON}",
            {name for name in TABLES if not name.startswith(("widened", "variants", "geometries"))},
        ),
    ],
)
def test_shipped_clients_read_what_they_can(client: str, served: set[str]) -> None:
    """protocol §2.4: the columns of Python's and Spark's clients."""
    found = set()
    for name, table in TABLES.items():
        try:
            negotiate_format(announced(client), table.head, "s.s.t")
            found.add(name)
        except Unserveable:
            continue
    assert found == served


@pytest.mark.parametrize("header", ["responseformat=avro", "responseformat=avro,orc"])
def test_a_format_of_nobody_here_is_refused(header: str) -> None:
    with pytest.raises(BadRequest, match=r"responseformat: 'avro.*parquet, delta"):
        negotiate_format(announced(header), TABLES["a plain table"].head, "s.s.t")


def test_unknown_formats_beside_known_ones_say_nothing() -> None:
    """protocol §1.11: unknown values are ignored, order carries no meaning."""
    assert (
        negotiate_format(announced("responseformat=avro,delta"), TABLES["a plain table"].head, "t") == "delta"
    )
    assert (
        negotiate_format(announced("responseformat=avro,parquet"), TABLES["a plain table"].head, "t")
        == "parquet"
    )


LOG_ONLY = ("v2Checkpoint", "vacuumProtocolCheck", "catalogManaged", "inCommitTimestamp")
LOG_PROPERTIES = {
    "delta.checkpointPolicy": "v2",
    "delta.enableInCommitTimestamps": "true",
    "delta.inCommitTimestampEnablementVersion": "3",
    "delta.inCommitTimestampEnablementTimestamp": "1",
    "delta.feature.v2Checkpoint": "supported",
}


def test_recipients_are_not_told_how_the_log_is_kept() -> None:
    """protocol §2.5.1, §2.4: log-only features are gone from both lists, and their properties with them."""
    properties = {**LOG_PROPERTIES, "delta.appendOnly": "true", "mine": "x"}
    head = Table(readers=(*LOG_ONLY, "columnMapping"), properties=properties).head
    assert head.protocol.reader_features == ("columnMapping",)
    assert head.protocol.writer_features == ("columnMapping", "appendOnly")
    assert head.configuration == {"delta.appendOnly": "true", "mine": "x"}
    assert head.commit_times_since == 3


@pytest.mark.parametrize("ids", [{"baseRowId": 0, "defaultRowCommitVersion": 0}, {}])
def test_row_tracking_is_told_only_when_every_file_has_its_rows(ids: dict[str, int]) -> None:
    """protocol §0.18: announced but missing in a file, it fails Spark."""
    tracked = Table(
        readers=(),
        writers=("rowTracking", "appendOnly"),
        properties={"delta.enableRowTracking": "true", "a": "b"},
        add=ids,
    ).head
    assert ("delta.enableRowTracking" in tracked.configuration) == bool(ids)
    assert ("rowTracking" in (tracked.protocol.writer_features or ())) == bool(ids)
    assert "appendOnly" in (tracked.protocol.writer_features or ())
    assert tracked.configuration["a"] == "b"


def test_partitions_of_bytes_go_out_in_delta_only() -> None:
    metadata = {
        "id": "id",
        "schemaString": '{"type":"struct","fields":[{"name":"b","type":"binary","nullable":true,"metadata":{}}]}',
        "partitionColumns": ["b"],
        "configuration": {},
    }
    head = make_delta_head({"minReaderVersion": 1, "minWriterVersion": 2}, metadata, from_actions([], ["b"]))
    assert negotiate_format(announced(EITHER), head, "t") == "delta"
    with pytest.raises(Unserveable, match="partitioned by binary column b"):
        negotiate_format(announced(PARQUET), head, "t")


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Provider:
    folder = tmp_path_factory.mktemp("negotiation")
    provider = a_provider(folder)
    rows = some_rows().drop_columns(["crew"])
    needy = a_delta_table(folder / "needy", rows)
    need_column_mapping(needy)
    provider.publish_delta("lake.needy", needy)
    provider.publish_delta("lake.simple", a_delta_table(folder / "simple", rows))
    provider.publish_iceberg("lake.iceberg", an_iceberg_table(folder / "warehouse").state())
    provider.share("lake.needy", "lake.simple", "lake.iceberg")
    return provider


@pytest.fixture(scope="module")
def client(provider: Provider) -> Iterator[httpx.Client]:
    with a_server(provider) as server, server.client(provider.recipient()) as client:
        yield client


def need_column_mapping(location: Path) -> None:
    log = location / "_delta_log" / "00000000000000000000.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for action in actions:
        if "protocol" in action:
            action["protocol"] = {"minReaderVersion": 2, "minWriterVersion": 5}
        if "metaData" in action:
            schema = json.loads(action["metaData"]["schemaString"])
            for number, column in enumerate(schema["fields"], 1):
                column["metadata"] = {
                    "delta.columnMapping.id": number,
                    "delta.columnMapping.physicalName": column["name"],
                }
            action["metaData"].update(schemaString=json.dumps(schema), configuration=MAPPED)
    log.write_text("".join(json.dumps(action) + "\n" for action in actions))


@pytest.mark.parametrize("call", [("GET", "/metadata"), ("POST", "/query")])
@pytest.mark.parametrize("header", [PARQUET, DELTA, EITHER, f"{EITHER};readerfeatures=deletionvectors"])
def test_metadata_refuses_what_the_query_would(
    client: httpx.Client, call: tuple[str, str], header: str
) -> None:
    """protocol §2.5.5: chosen as upstream's tests have it; both are 400, a permanent fault (§0.19)."""
    path = f"/shares/flights/schemas/lake/tables/needy{call[1]}"
    answer = client.request(call[0], path, headers={"delta-sharing-capabilities": header})
    assert answer.status_code == 400
    assert answer.json()["errorCode"] == "UNSUPPORTED_OPERATION"
    assert answer.json()["message"].startswith(
        "Unsupported Delta Table Properties: flights.lake.needy has column mapping in mode name"
    )
    assert "readerfeatures=columnmapping" in answer.json()["message"]


@pytest.mark.parametrize(
    ("table", "header", "expected"),
    [
        ("needy", f"{DELTA};{SPARK}", "delta"),
        ("needy", f"{EITHER};{PYTHON}", "delta"),
        ("simple", f"{EITHER};{PYTHON}", "parquet"),
        ("simple", f"{DELTA};{PYTHON}", "delta"),
        ("iceberg", f"{EITHER};{PYTHON}", "parquet"),
        ("iceberg", DELTA, "delta"),
        ("simple", "", "parquet"),
    ],
)
def test_metadata_and_query_choose_the_same_format_and_say_so(
    client: httpx.Client, table: str, header: str, expected: str
) -> None:
    """protocol §1.6, §1.11: lower case, and the format the query would have."""
    headers = {"delta-sharing-capabilities": header}
    root = f"/shares/flights/schemas/lake/tables/{table}"
    for answer in (
        client.get(f"{root}/metadata", headers=headers),
        client.post(f"{root}/query", headers=headers),
    ):
        assert answer.headers["delta-sharing-capabilities"] == f"responseformat={expected}"
        [first, *_] = lines(answer)
        assert ("deltaProtocol" in first["protocol"]) == (expected == "delta")
