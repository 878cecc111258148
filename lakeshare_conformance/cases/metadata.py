"""Versions and metadata of tables, and the negotiation of the response format."""

from lakeshare_conformance.case import (
    BOTH,
    COUNT,
    DELTA,
    MUST,
    NAME,
    OBJECT,
    OPTIONAL,
    PARQUET,
    SHOULD,
    TEXT,
    TEXT_MAP,
    TEXTS,
    Fields,
    Group,
    NotApplicable,
    expect,
    expect_fields,
)
from lakeshare_conformance.client import CAPABILITIES, Response
from lakeshare_conformance.reply import HEAD, Reply
from lakeshare_conformance.targets import ANNOUNCED, FEATURES, Table, View

METADATA_GROUP = Group("metadata", "The protocol and metaData lines")

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


@METADATA_GROUP.on_views(MUST, "1.6", "6.2")
def metadata_is_exactly_two_lines(view: View) -> None:
    """The metadata call answers the lines protocol and metaData, and no other."""
    kinds = [line.kind for line in view.metadata.lines]
    expect(kinds == list(HEAD), view.metadata.where, "two lines, protocol and metaData", kinds)


@METADATA_GROUP.on_views(MUST, "1.6", "1.11")
def metadata_is_two_lines_whatever_is_announced(view: View) -> None:
    """Two lines also for a client that announces includeendstreamaction: there is no stream here."""
    reply = Reply(view.table.metadata(view.announcing("includeendstreamaction=true")))
    kinds = [line.kind for line in reply.lines]
    expect(kinds == list(HEAD), reply.where, "two lines, protocol and metaData", kinds)


@METADATA_GROUP.on_views(MUST, "1.0")
def table_answers_are_ndjson(view: View) -> None:
    """Metadata and query are application/x-ndjson with charset utf-8."""
    for reply in (view.metadata, view.snapshot):
        kind = reply.response.header("content-type").lower().replace(" ", "")
        expect(
            kind == "application/x-ndjson;charset=utf-8",
            reply.where,
            "application/x-ndjson; charset=utf-8",
            kind,
        )


@METADATA_GROUP.on_views(SHOULD, "1.7", "6.2")
def a_query_begins_with_the_same_head(view: View) -> None:
    """A query's first two lines say what the metadata call says."""
    request, reported = view.snapshot.head, view.metadata.head
    for line, other in zip(request, reported, strict=True):
        expect(line.value == other.value, line.where, str(other.value), line.value)


@METADATA_GROUP.on_views(MUST, "2.1", formats=(PARQUET,))
def parquet_protocol_is_reader_version_1(view: View) -> None:
    """In parquet format the protocol is minReaderVersion 1."""
    version = view.metadata.protocol.get("minReaderVersion")
    expect(
        version == 1 and version is not True,
        view.metadata.where,
        "minReaderVersion 1",
        view.metadata.protocol,
    )


@METADATA_GROUP.on_views(MUST, "2.1", "2.2")
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


@METADATA_GROUP.on_views(MUST, "2.1", formats=(PARQUET,))
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


@METADATA_GROUP.on_views(MUST, "0.4", "2.2", formats=(DELTA,))
def delta_metadata_tells_the_size(view: View) -> None:
    """metaData.size is there in delta format: Spark's reader fails without."""
    expect_fields(f"{view.metadata.where}, metaData", view.metadata.head[1].value, {"size": COUNT}, {})


@METADATA_GROUP.on_views(SHOULD, "2.1", "2.2", formats=BOTH)
def metadata_tells_size_and_number_of_files(view: View) -> None:
    """metaData has size and numFiles: without them Spark lists all files once more."""
    expect_fields(
        f"{view.metadata.where}, metaData",
        view.metadata.head[1].value,
        {"size": COUNT, "numFiles": COUNT},
        {},
    )


@METADATA_GROUP.on_views(MUST, "2.1", "2.2")
def size_and_number_of_files_are_true(view: View) -> None:
    """numFiles and size are the number and the bytes of the files that the query answers."""
    reported, actions = view.snapshot.head[1].value, view.snapshot.actions
    found = {"numFiles": len(actions), "size": sum(action.size_bytes for action in actions)}
    for name, value in found.items():
        if reported.get(name) is not None:
            expect(
                reported[name] == value, f"{view.snapshot.where}, metaData.{name}", str(value), reported[name]
            )


@METADATA_GROUP.on_views(MUST, "2.2", formats=(DELTA,))
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


@METADATA_GROUP.on_views(MUST, "2.4", formats=(DELTA,))
def features_of_the_log_are_left_out(view: View) -> None:
    """Features for who reads the log itself, like v2Checkpoint, are not sent: Spark would refuse the table."""
    found = LOG_ONLY & (_features(view, "readerFeatures") | _features(view, "writerFeatures"))
    expect(not found, f"{view.metadata.where}, deltaProtocol", f"none of {sorted(LOG_ONLY)}", sorted(found))


@METADATA_GROUP.on_views(MUST, "2.4", formats=(DELTA,))
def reader_features_stand_in_both_lists(view: View) -> None:
    """Features for readers stand in both lists: delta-kernel refuses one that is in writerFeatures alone."""
    readers, writers = _features(view, "readerFeatures"), _features(view, "writerFeatures")
    where = f"{view.metadata.where}, deltaProtocol"
    expect(readers <= writers, where, "readerFeatures to be among writerFeatures", sorted(readers - writers))
    # Reader version 2 is column mapping, without saying so.
    implied = {"columnMapping"} if view.metadata.protocol.get("minReaderVersion") == 2 else set()
    lost = (writers & READER_FEATURES) - readers - implied
    expect(not lost, where, "features for readers to be among readerFeatures", sorted(lost))


@METADATA_GROUP.on_views(MUST, "0.13", "1.8", formats=(DELTA,))
def the_writer_protocol_fits_the_change_data_feed(view: View) -> None:
    """With delta.enableChangeDataFeed the writer version is 4 to 6, or 7 with changeDataFeed."""
    if view.metadata.configuration.get("delta.enableChangeDataFeed") != "true":
        raise NotApplicable("no table in delta format has the change data feed on")
    version = view.metadata.protocol.get("minWriterVersion")
    fits = version in (4, 5, 6) or (version == 7 and "changeDataFeed" in _features(view, "writerFeatures"))
    expect(
        fits,
        f"{view.metadata.where}, deltaProtocol",
        "a writer protocol with the feed",
        view.metadata.protocol,
    )


@METADATA_GROUP.on_views(MUST, "1.11", "6.1")
def the_format_is_told(view: View) -> None:
    """The header delta-sharing-capabilities tells the format in lower case; without it the format is parquet."""
    for reply in (view.metadata, view.snapshot):
        reported = reply.response.headers.get(CAPABILITIES)
        is_told = f"responseformat={view.format}" in (reported or "") or (
            reported is None and view.format == PARQUET
        )
        expect(is_told, reply.where, f"{CAPABILITIES} with responseformat={view.format}", reported or "none")
        inner = "deltaProtocol" in reply.head[0].value
        expect(
            inner == (view.format == DELTA),
            reply.where,
            f"lines in {view.format} format",
            reply.head[0].value,
        )


@METADATA_GROUP.on_views(MUST, "1.6", "0.19")
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


@METADATA_GROUP.on_views(MUST, "1.6", "0.19")
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


VERSIONS = Group("versions", "The version of a table")

LONG_AGO, FAR_AHEAD = "1970-01-02T00:00:00Z", "2999-01-01T00:00:00Z"


@VERSIONS.on_tables(MUST, "1.5", "0.7")
def the_version_is_a_header(table: Table) -> None:
    """The version call answers 200 with the header Delta-Table-Version, a whole number, and an empty body."""
    table.expect_readable()
    response = table.version().expect_status(200)
    expect(response.version >= 0, response.request, "a version from 0", response.version)
    expect(response.body == b"", response.request, "an empty body", response.summary)


@VERSIONS.on_tables(OPTIONAL, "1.1", "1.5")
def head_of_a_table_tells_its_version(table: Table) -> None:
    """HEAD of the table, which old clients send, answers the same header."""
    table.expect_readable()
    response = table.ask("HEAD")
    if response.status in (404, 405, 501):
        raise NotApplicable("the server does not answer HEAD of a table")
    version = response.expect_status(200).version
    expect(version == table.latest, response.request, f"version {table.latest}", version)


@VERSIONS.on_views(MUST, "1.0", "1.6", "1.7", "6.2")
def all_calls_tell_one_version(view: View) -> None:
    """Metadata and query answer the version that the version call tells, in the same header."""
    for reply in (view.metadata, view.snapshot):
        expect(reply.version == view.table.latest, reply.where, f"version {view.table.latest}", reply.version)


@VERSIONS.on_views(MUST, "1.5")
def the_first_version_since_a_time_is_found(view: View) -> None:
    """startingTimestamp gives the earliest version at or after it: the first one for a time before all of them."""
    response = view.table.version(startingTimestamp=LONG_AGO)
    versions = view.versions
    expect(
        response.expect_status(200).version <= versions[0],
        response.request,
        f"at most {versions[0]}",
        response.version,
    )


@VERSIONS.on_views(MUST, "1.5", "0.19")
def a_time_after_all_versions_is_400(view: View) -> None:
    """startingTimestamp after the last commit is 400."""
    if view.versions:
        view.table.version(startingTimestamp=FAR_AHEAD).refusal(400)


@VERSIONS.on_tables(MUST, "1.0", "1.5")
def a_time_that_is_none_is_400(table: Table) -> None:
    """A startingTimestamp that is not a time in ISO-8601 is 400."""
    for text in ("yesterday", "2022-13-01T00:00:00Z", "1700000000000", "2022-01-01T25:00:00Z"):
        table.version(startingTimestamp=text).refusal(400)


@VERSIONS.on_views(SHOULD, "1.0")
def a_time_may_have_an_offset_and_fractions(view: View) -> None:
    """Times are taken with numeric offsets and with fractions of seconds, too."""
    wanted = (
        view.table.version(startingTimestamp=LONG_AGO).expect_status(200).version if view.versions else -1
    )
    for text in ("1970-01-02T00:00:00.123Z", "1970-01-02T00:00:00-08:00", "1970-01-02T05:30:00.000001+05:30"):
        response = view.table.version(startingTimestamp=text).expect_status(200)
        expect(response.version == wanted, response.request, f"version {wanted}", response.version)


@VERSIONS.on_tables(SHOULD, "1.0")
def a_date_alone_is_400(table: Table) -> None:
    """A date without a time of day is 400, as the reference server answers."""
    table.version(startingTimestamp="2022-01-01").refusal(400)


NEGOTIATION = Group("negotiation", "How client and server agree on a response format")

SNAPSHOT_FEATURES_OF_PYTHON = "deletionvectors,columnmapping,timestampntz"


@NEGOTIATION.on_tables(MUST, "1.11", "2.5")
def clients_that_ask_for_nothing_get_parquet(table: Table) -> None:
    """Without the header, or with responseformat=parquet, the answer is in parquet format or a refusal by 400."""
    for announced in (None, "responseformat=parquet", "", "asyncquery=false"):
        for response in (table.metadata(announced), table.query({"limitHint": 0}, announced)):
            if response.status != 200:
                response.refusal(400)
            else:
                expect(_format(response) == PARQUET, response.request, "parquet format", _format(response))


@NEGOTIATION.on_tables(MUST, "1.11", "2.5")
def the_order_of_formats_means_nothing(table: Table) -> None:
    """A list of formats is answered with one of them, the same in either order and for query and metadata."""
    table.expect_readable()
    lists = [
        f"responseformat={formats};readerfeatures={FEATURES}"
        for formats in ("parquet,delta", "delta,parquet")
    ]
    answers = [
        response for text in lists for response in (table.metadata(text), table.query({"limitHint": 0}, text))
    ]
    formats = {_format(response.expect_status(200)) for response in answers}
    expect(
        len(formats) == 1 and formats <= {PARQUET, DELTA},
        answers[0].request,
        "one format for all",
        sorted(formats),
    )


@NEGOTIATION.on_tables(MUST, "2.5", "6.1")
def the_python_client_finds_its_format(table: Table) -> None:
    """What the metadata call chooses of delta,parquet the query answers, as the Python client relies on."""
    both = f"responseformat=delta,parquet;readerfeatures={SNAPSHOT_FEATURES_OF_PYTHON}"
    response = table.metadata(both)
    if response.status == 400:
        raise NotApplicable(f"{table.name} needs features that the Python client lacks")
    format = _format(response.expect_status(200))
    alone = f"responseformat=delta;readerfeatures={SNAPSHOT_FEATURES_OF_PYTHON}" if format == DELTA else None
    query = table.query({}, alone).expect_status(200)
    expect(_format(query) == format, query.request, f"{format} format, as metadata chose", _format(query))


@NEGOTIATION.on_views(MUST, "1.11", formats=(DELTA,))
def capabilities_are_read_in_any_case(view: View) -> None:
    """Keys and values of the header are read in any case, with unknown keys among them."""
    announced = str(ANNOUNCED[DELTA])
    for text in (
        announced.upper(),
        announced.lower(),
        f"lakeshare=1,2;{announced};x",
        announced.replace(";", " ; "),
    ):
        for response in (view.table.metadata(text), view.table.query({"limitHint": 0}, text)):
            expect(
                _format(response.expect_status(200)) == DELTA,
                response.request,
                "delta format",
                _format(response),
            )


@NEGOTIATION.on_tables(MUST, "1.11", "0.19")
def a_header_that_makes_no_sense_is_no_fault_of_the_server(table: Table) -> None:
    """A malformed header is ignored or 400, never 5xx."""
    for text in (
        "=;;==,;",
        "responseformat=",
        "responseformat",
        "responseformat=avro",
        ";" * 5000,
        "a=" + "b," * 3000,
    ):
        for response in (table.metadata(text), table.query({"limitHint": 0}, text)):
            if response.status != 200:
                response.refusal(400, 413, 431)


@NEGOTIATION.on_views(MUST, "2.5", "0.19", formats=(DELTA,))
def features_the_client_lacks_are_refused(view: View) -> None:
    """Delta lines that need reader features go to no client that does not announce them: 400."""
    response = _query_without_features(view)
    if response.status == 200:
        # Features that this snapshot makes no use of may be left out of its protocol.
        needed = _needed(Reply(response))
        expect(not needed, response.request, "a refusal, or lines without reader features", needed)
    else:
        response.refusal(400)


@NEGOTIATION.on_views(SHOULD, "2.5", formats=(DELTA,))
def features_the_client_lacks_are_named(view: View) -> None:
    """The refusal names the reader features the client would have to announce."""
    response = _query_without_features(view)
    if response.status == 200:
        raise NotApplicable("no snapshot makes use of its reader features")
    message = response.refusal(400).lower()
    for feature in _needed(view.metadata):
        expect(feature.lower() in message, response.request, f"a refusal that names {feature}", message)


@NEGOTIATION.on_tables(MUST, "2.5", "0.19")
def what_parquet_cannot_carry_is_refused(table: Table) -> None:
    """A table that needs reader features is refused to clients of parquet format, by 400."""
    if table.view(PARQUET) is not None or table.view(DELTA) is None:
        raise NotApplicable("no table is served in delta format only")
    for announced in (None, "responseformat=parquet"):
        table.metadata(announced).refusal(400)
        table.query({}, announced).refusal(400)


def _format(response: Response) -> str:
    return response.capabilities.get("responseformat") or PARQUET


def _needed(reply: Reply) -> list[str]:
    """The reader features that the lines of a reply need."""
    features = [str(feature) for feature in reply.protocol.get("readerFeatures") or []]
    is_second = reply.protocol.get("minReaderVersion") == 2
    return features or (["columnMapping"] if is_second and reply.is_mapped else [])


def _query_without_features(view: View) -> Response:
    if not _needed(view.metadata):
        raise NotApplicable("no table needs reader features")
    return view.table.query({}, "responseformat=delta")
