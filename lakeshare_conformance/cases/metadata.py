"""The protocol and metaData lines."""

from lakeshare_conformance.case import (
    BOTH,
    COUNT,
    DELTA,
    MUST,
    NAME,
    OBJECT,
    PARQUET,
    SHOULD,
    TEXT,
    TEXT_MAP,
    TEXTS,
    Fields,
    NothingToTry,
    expect,
    expect_fields,
    on_views,
)
from lakeshare_conformance.client import CAPABILITIES
from lakeshare_conformance.ground import View
from lakeshare_conformance.reply import HEAD, Reply

PRIMITIVES = frozenset(
    (
        "string",
        "long",
        "integer",
        "short",
        "byte",
        "float",
        "double",
        "boolean",
        "binary",
        "date",
        "timestamp",
    )
)
LOG_ONLY = {"v2Checkpoint", "vacuumProtocolCheck", "catalogManaged", "catalogOwned-preview"}
READER_FEATURES = {
    "deletionVectors",
    "columnMapping",
    "timestampNtz",
    "typeWidening",
    "variantType",
    "variantShredding",
}
SHARED: Fields = {
    "version": COUNT,
    "size": COUNT,
    "numFiles": COUNT,
    "location": NAME,
    "auxiliaryLocations": TEXTS,
}
METADATA: Fields = {"id": NAME, "format": OBJECT, "schemaString": NAME, "partitionColumns": TEXTS}
OPTIONAL_METADATA: Fields = {
    "name": TEXT,
    "description": TEXT,
    "configuration": TEXT_MAP,
    "createdTime": COUNT,
}


@on_views(MUST, "1.6", "6.2")
def metadata_is_exactly_two_lines(view: View) -> None:
    """The metadata call answers the lines protocol and metaData, and no other."""
    kinds = [line.kind for line in view.metadata.lines]
    expect(kinds == list(HEAD), view.metadata.where, "two lines, protocol and metaData", kinds)


@on_views(MUST, "1.6", "1.11")
def metadata_is_two_lines_whatever_is_announced(view: View) -> None:
    """Two lines also for a client that announces includeendstreamaction: there is no stream here."""
    reply = Reply(view.table.metadata(view.announcing("includeendstreamaction=true")))
    kinds = [line.kind for line in reply.lines]
    expect(kinds == list(HEAD), reply.where, "two lines, protocol and metaData", kinds)


@on_views(MUST, "1.0")
def table_answers_are_ndjson(view: View) -> None:
    """Metadata and query are application/x-ndjson with charset utf-8."""
    for reply in (view.metadata, view.snapshot):
        kind = reply.answer.header("content-type").lower().replace(" ", "")
        expect(
            kind == "application/x-ndjson;charset=utf-8",
            reply.where,
            "application/x-ndjson; charset=utf-8",
            kind,
        )


@on_views(SHOULD, "1.7", "6.2")
def a_query_begins_with_the_same_head(view: View) -> None:
    """A query's first two lines say what the metadata call says."""
    asked, told = view.snapshot.head, view.metadata.head
    for line, other in zip(asked, told, strict=True):
        expect(line.value == other.value, line.where, str(other.value), line.value)


@on_views(MUST, "2.1", formats=(PARQUET,))
def parquet_protocol_is_reader_version_1(view: View) -> None:
    """In parquet format the protocol is minReaderVersion 1."""
    version = view.metadata.protocol.get("minReaderVersion")
    expect(
        version == 1 and version is not True,
        view.metadata.where,
        "minReaderVersion 1",
        view.metadata.protocol,
    )


@on_views(MUST, "2.1", "2.2")
def metadata_has_the_documented_fields(view: View) -> None:
    """metaData (in delta format deltaMetadata) has id, format, schemaString and partitionColumns, of their kinds."""
    reply = view.metadata
    where = f"{reply.where}, metaData"
    expect_fields(where, reply.metadata, METADATA, OPTIONAL_METADATA)
    expect_fields(where, reply.head[1].value, {}, SHARED)
    expect(
        reply.metadata["format"].get("provider") == "parquet",
        where,
        "provider parquet",
        reply.metadata["format"],
    )
    names = [field["name"] for field in reply.fields]
    strange = [name for name in reply.partition_columns if name not in names]
    expect(not strange, where, "partitionColumns to be columns of the schema", strange)


@on_views(MUST, "2.1", formats=(PARQUET,))
def parquet_schemas_hold_what_old_clients_know(view: View) -> None:
    """A schema in parquet format is made of the first types only: no timestamp_ntz, no variant."""
    for field in view.metadata.fields:
        unknown = sorted(_unknown_types(field.get("type")))
        expect(
            not unknown,
            f"{view.metadata.where}, column {field['name']}",
            "a type every client knows",
            unknown,
        )


@on_views(MUST, "0.4", "2.2", formats=(DELTA,))
def delta_metadata_tells_the_size(view: View) -> None:
    """metaData.size is there in delta format: Spark's reader fails without."""
    expect_fields(f"{view.metadata.where}, metaData", view.metadata.head[1].value, {"size": COUNT}, {})


@on_views(SHOULD, "2.1", "2.2", formats=BOTH)
def metadata_tells_size_and_number_of_files(view: View) -> None:
    """metaData has size and numFiles: without them Spark lists all files once more."""
    expect_fields(
        f"{view.metadata.where}, metaData",
        view.metadata.head[1].value,
        {"size": COUNT, "numFiles": COUNT},
        {},
    )


@on_views(MUST, "2.1", "2.2")
def size_and_number_of_files_are_true(view: View) -> None:
    """numFiles and size are the number and the bytes of the files that the query answers."""
    told, actions = view.snapshot.head[1].value, view.snapshot.actions
    found = {"numFiles": len(actions), "size": sum(action.size_bytes for action in actions)}
    for name, value in found.items():
        if told.get(name) is not None:
            expect(told[name] == value, f"{view.snapshot.where}, metaData.{name}", str(value), told[name])


@on_views(MUST, "2.2", formats=(DELTA,))
def the_delta_protocol_is_well_formed(view: View) -> None:
    """deltaProtocol has both versions; readerFeatures go with reader version 3, writerFeatures with writer 7."""
    reply = view.metadata
    where = f"{reply.where}, deltaProtocol"
    versions: Fields = {"minReaderVersion": COUNT, "minWriterVersion": COUNT}
    expect_fields(where, reply.protocol, versions, {"readerFeatures": TEXTS, "writerFeatures": TEXTS})
    has_reader = reply.protocol.get("readerFeatures") is not None
    has_writer = reply.protocol.get("writerFeatures") is not None
    is_fit = has_reader == (reply.protocol["minReaderVersion"] == 3)
    is_fit = is_fit and has_writer == (reply.protocol["minWriterVersion"] == 7)
    expect(is_fit, where, "feature lists just where the versions call for them", reply.protocol)


@on_views(MUST, "2.4", formats=(DELTA,))
def features_of_the_log_are_left_out(view: View) -> None:
    """Features for who reads the log itself, like v2Checkpoint, are not sent: Spark would refuse the table."""
    found = LOG_ONLY & (_features(view, "readerFeatures") | _features(view, "writerFeatures"))
    expect(not found, f"{view.metadata.where}, deltaProtocol", f"none of {sorted(LOG_ONLY)}", sorted(found))


@on_views(MUST, "2.4", formats=(DELTA,))
def reader_features_stand_in_both_lists(view: View) -> None:
    """Features for readers stand in both lists: delta-kernel refuses one that is in writerFeatures alone."""
    readers, writers = _features(view, "readerFeatures"), _features(view, "writerFeatures")
    where = f"{view.metadata.where}, deltaProtocol"
    expect(readers <= writers, where, "readerFeatures to be among writerFeatures", sorted(readers - writers))
    # Reader version 2 is column mapping, without saying so.
    implied = {"columnMapping"} if view.metadata.protocol.get("minReaderVersion") == 2 else set()
    lost = (writers & READER_FEATURES) - readers - implied
    expect(not lost, where, "features for readers to be among readerFeatures", sorted(lost))


@on_views(MUST, "0.13", "1.8", formats=(DELTA,))
def the_writer_protocol_fits_the_change_data_feed(view: View) -> None:
    """With delta.enableChangeDataFeed the writer version is 4 to 6, or 7 with changeDataFeed."""
    if view.metadata.configuration.get("delta.enableChangeDataFeed") != "true":
        raise NothingToTry("no table in delta format has the change data feed on")
    version = view.metadata.protocol.get("minWriterVersion")
    fits = version in (4, 5, 6) or (version == 7 and "changeDataFeed" in _features(view, "writerFeatures"))
    expect(
        fits,
        f"{view.metadata.where}, deltaProtocol",
        "a writer protocol with the feed",
        view.metadata.protocol,
    )


@on_views(MUST, "1.11", "6.1")
def the_format_is_told(view: View) -> None:
    """The header delta-sharing-capabilities tells the format in lower case; without it the format is parquet."""
    for reply in (view.metadata, view.snapshot):
        told = reply.answer.headers.get(CAPABILITIES)
        is_told = f"responseformat={view.format}" in (told or "") or (told is None and view.format == PARQUET)
        expect(is_told, reply.where, f"{CAPABILITIES} with responseformat={view.format}", told or "none")
        inner = "deltaProtocol" in reply.head[0].value
        expect(
            inner == (view.format == DELTA),
            reply.where,
            f"lines in {view.format} format",
            reply.head[0].value,
        )


@on_views(MUST, "1.6", "0.19")
def metadata_of_a_version_is_told(view: View) -> None:
    """Metadata is asked for at a version, too: header and metaData are of that version."""
    for version in {view.versions[0], view.versions[-1]}:
        reply = Reply(view.table.metadata(view.announced, version=version))
        expect(reply.version == version, reply.where, f"version {version}", reply.version)
        wanted = view.query(version=version).head[1].value
        expect(
            reply.head[1].value == wanted,
            reply.where,
            f"the metaData of {version}: {wanted}",
            reply.head[1].value,
        )


@on_views(MUST, "1.6", "0.19")
def metadata_of_no_version_is_400(view: View) -> None:
    """A version that is negative, no number or too high, and a version beside a timestamp, are 400."""
    beyond = view.table.latest + 1000
    for params in (
        {"version": -1},
        {"version": "x"},
        {"version": beyond},
        {"version": 0, "timestamp": "2022-01-01T00:00:00Z"},
        {"timestamp": "not a time"},
    ):
        view.table.metadata(view.announced, **params).refusal(400)


def _features(view: View, name: str) -> set[str]:
    return set(view.metadata.protocol.get(name) or [])


def _unknown_types(kind: object) -> set[str]:
    """What in a type is none of the first types."""
    if isinstance(kind, str):
        return set() if kind in PRIMITIVES or kind.startswith("decimal(") else {kind}
    if not isinstance(kind, dict):
        return {str(kind)}
    if kind.get("type") == "struct":
        return set().union(*(_unknown_types(field.get("type")) for field in kind.get("fields", [])))
    parts = {"array": ("elementType",), "map": ("keyType", "valueType")}.get(str(kind.get("type")))
    return (
        {str(kind.get("type"))}
        if parts is None
        else set().union(*(_unknown_types(kind.get(part)) for part in parts))
    )
