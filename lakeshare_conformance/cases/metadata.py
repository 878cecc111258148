"""Versions and metadata of tables, and the negotiation of the response format."""

from lakeshare_conformance import wire
from lakeshare_conformance.case import DELTA, PARQUET, Group, require
from lakeshare_conformance.client import CAPABILITIES, FAR_AHEAD, LONG_AGO, METADATA, NOON, PROTOCOL, Response
from lakeshare_conformance.targets import FEATURES, DeltaView, ParquetView, Table, View

# The types that every client knows.
PRIMITIVES = {"string", "long", "integer", "short", "byte", "float", "double", "boolean", "binary"}
PRIMITIVES |= {"date", "timestamp"}
LOG_FEATURES = {"v2Checkpoint", "vacuumProtocolCheck", "catalogManaged", "catalogOwned-preview"}
READER_FEATURES = frozenset(
    ["deletionVectors", "columnMapping", "timestampNtz", "typeWidening", "variantType", "variantShredding"]
)


class Metadata(Group):
    """The protocol and metaData lines."""

    def metadata_is_exactly_two_lines(self, view: View) -> None:
        """must §1.6, §6.2: The metadata call answers the lines protocol and metaData, and no other."""
        view.metadata.expect_equal(view.metadata.kinds, [PROTOCOL, METADATA], "the lines")

    def metadata_is_two_lines_whatever_is_announced(self, view: View) -> None:
        """must §1.6, §1.11: Two lines also for a client that announces includeendstreamaction: there is no
        stream here."""
        reply = view.table.metadata(view.announce("includeendstreamaction=true")).read()
        reply.expect_equal(reply.kinds, [PROTOCOL, METADATA], "the lines")

    def table_answers_are_ndjson(self, view: View) -> None:
        """must §1.0: Metadata and query are application/x-ndjson with charset utf-8."""
        for reply in (view.metadata, view.snapshot):
            reply.expect_media_type("application/x-ndjson")

    def a_query_begins_with_the_same_head(self, view: View) -> None:
        """should §1.7, §6.2: A query's first two lines say what the metadata call says."""
        for line, other in zip(view.snapshot.head, view.metadata.head, strict=True):
            line.expect_equal(line.value, other.value)

    def parquet_protocol_is_reader_version_1(self, view: ParquetView) -> None:
        """must §2.1: In parquet format the protocol is minReaderVersion 1."""
        view.metadata.expect_equal(view.metadata.protocol.min_reader_version, 1, "minReaderVersion")

    def metadata_has_the_documented_fields(self, view: View) -> None:
        """must §2.1, §2.2: metaData (in delta format deltaMetadata) has id, format, schemaString and
        partitionColumns, of their kinds."""
        reply = view.metadata
        wire.parse(wire.SharedMetadata, reply.head[1].value, f"{reply.where}, metaData")
        names = {column.name for column in reply.columns}
        unknown = sorted(set(reply.metadata.partition_columns) - names)
        reply.expect(not unknown, "partitionColumns to be columns of the schema", unknown)

    def parquet_schemas_hold_what_old_clients_know(self, view: ParquetView) -> None:
        """must §2.1: A schema in parquet format is made of the first types only: no timestamp_ntz, no variant."""
        for column in view.metadata.columns:
            unknown = sorted(_find_unknown_types(column.type))
            view.metadata.expect(not unknown, "a type every client knows", unknown, f"column {column.name}")

    def delta_metadata_has_the_size(self, view: DeltaView) -> None:
        """must §0.4, §2.2: metaData.size is there in delta format: Spark's reader fails without."""
        _expect_shared(view.metadata, "size")

    def metadata_has_size_and_number_of_files(self, view: View) -> None:
        """should §2.1, §2.2: metaData has size and numFiles: without them Spark lists all files once more."""
        _expect_shared(view.metadata, "size")
        _expect_shared(view.metadata, "numFiles")

    def size_and_number_of_files_are_true(self, view: View) -> None:
        """must §2.1, §2.2: numFiles and size are the number and the bytes of the files that the query answers."""
        reply, sizes = view.snapshot, [action.size for action in view.snapshot.actions]
        if reply.shared.num_files is not None:
            reply.expect_equal(reply.shared.num_files, len(sizes), part="metaData.numFiles")
        if reply.shared.size is not None:
            reply.expect_equal(reply.shared.size, sum(sizes), part="metaData.size")

    def the_delta_protocol_is_well_formed(self, view: DeltaView) -> None:
        """must §2.2: deltaProtocol has both versions; readerFeatures go with reader version 3, writerFeatures
        with writer 7."""
        protocol = view.metadata.protocol
        has_reader, has_writer = protocol.reader_features is not None, protocol.writer_features is not None
        is_fit = protocol.min_writer_version is not None and has_reader == (protocol.min_reader_version == 3)
        is_fit = is_fit and has_writer == (protocol.min_writer_version == 7)
        wanted = "both versions, and feature lists for reader version 3 and writer version 7"
        view.metadata.expect(is_fit, wanted, protocol.fields)

    def features_of_the_log_are_left_out(self, view: DeltaView) -> None:
        """must §2.4: Features for who reads the log itself, like v2Checkpoint, are not sent: Spark would refuse
        the table."""
        found = LOG_FEATURES & set().union(*_get_features(view))
        view.metadata.expect(not found, f"no feature of {sorted(LOG_FEATURES)}", sorted(found))

    def reader_features_stand_in_both_lists(self, view: DeltaView) -> None:
        """must §2.4: Features for readers stand in both lists: delta-kernel refuses one that is in
        writerFeatures alone."""
        readers, writers = _get_features(view)
        extra = sorted(readers - writers)
        view.metadata.expect(not extra, "readerFeatures to be among writerFeatures", extra)
        # Reader version 2 implies column mapping.
        implied = {"columnMapping"} if view.metadata.protocol.min_reader_version == 2 else set()
        lost = sorted((writers & READER_FEATURES) - readers - implied)
        view.metadata.expect(not lost, "features for readers to be among readerFeatures", lost)

    def the_writer_protocol_fits_the_change_data_feed(self, view: DeltaView) -> None:
        """must §0.13, §1.8: With delta.enableChangeDataFeed the writer version is 4 to 6, or 7 with changeDataFeed."""
        protocol, is_on = view.metadata.protocol, view.metadata.is_on("delta.enableChangeDataFeed")
        require(is_on, "no table in delta format has the change data feed on")
        view.metadata.expect(
            protocol.allows_change_data_feed, "a writer protocol with the feed", protocol.fields
        )

    def the_format_is_in_the_header(self, view: View) -> None:
        """must §1.11, §6.1: The header delta-sharing-capabilities has the format in lower case; without it the
        format is parquet."""
        for reply in (view.metadata, view.snapshot):
            header = reply.headers.get(CAPABILITIES)
            is_fit = view.format == PARQUET if header is None else f"responseformat={view.format}" in header
            reply.expect(is_fit, f"{CAPABILITIES} with responseformat={view.format}", header or "none")
            is_fit = ("deltaProtocol" in reply.head[0].value) == (view.format == DELTA)
            reply.expect(is_fit, f"lines in {view.format} format", reply.head[0].value)

    def metadata_of_a_version_is_returned(self, view: View) -> None:
        """must §1.6, §0.19: Metadata is asked for at a version, too: header and metaData are of that version."""
        for version in {view.versions[0], view.versions[-1]}:
            reply = view.table.metadata(view.announced, version=version).read()
            reply.expect_version(version)
            wanted = view.query(version=version).head[1].value
            reply.expect_equal(reply.head[1].value, wanted, f"the metaData of {version}:")

    def metadata_of_no_version_is_400(self, view: View) -> None:
        """must §1.6, §0.19: A version that is negative, no number or too high, and a version beside a
        timestamp, are 400."""
        for version in (-1, "x", view.table.latest + 1000):
            view.table.metadata(view.announced, version=version).refusal(400)
        view.table.metadata(view.announced, version=0, timestamp=NOON).refusal(400)
        view.table.metadata(view.announced, timestamp="not a time").refusal(400)


def _expect_shared(reply: Response, name: str) -> None:
    reply.expect(reply.shared.fields[name] is not None, f"the field {name}", reply.head[1].value, "metaData")


def _get_features(view: View) -> tuple[set[str], set[str]]:
    protocol = view.metadata.protocol
    return set(protocol.reader_features or []), set(protocol.writer_features or [])


def _find_unknown_types(kind: object) -> set[str]:
    """The names in a type that are not among the first types."""
    if isinstance(kind, str):
        return set() if kind in PRIMITIVES or kind.startswith("decimal(") else {kind}
    if not isinstance(kind, dict):
        return {str(kind)}
    if kind.get("type") == "struct":
        parts = [field.get("type") for field in kind.get("fields", [])]
    elif kind.get("type") in ("array", "map"):
        names = ("elementType",) if kind["type"] == "array" else ("keyType", "valueType")
        parts = [kind.get(name) for name in names]
    else:
        return {str(kind.get("type"))}
    return set().union(*map(_find_unknown_types, parts))


class Versions(Group):
    """The version of a table."""

    def the_version_is_a_header(self, table: Table) -> None:
        """must §1.5, §0.7: The version call answers 200 with the header Delta-Table-Version, a whole number,
        and an empty body."""
        table.require_readable()
        response = table.version().expect_status(200)
        response.expect(response.version >= 0, "a version from 0", response.version)
        response.expect(response.body == b"", "an empty body", response.summary)

    def head_of_a_table_returns_its_version(self, table: Table) -> None:
        """optional §1.1, §1.5: HEAD of the table, which old clients send, answers the same header."""
        table.require_readable()
        response = table.ask("HEAD")
        require(response.status not in (404, 405, 501), "the server does not answer HEAD of a table")
        response.expect_status(200).expect_version(table.latest)

    def all_calls_return_one_version(self, view: View) -> None:
        """must §1.0, §1.6, §1.7, §6.2: Metadata and query have the version of the version call, in the same header."""
        for reply in (view.metadata, view.snapshot):
            reply.expect_version(view.table.latest)

    def the_first_version_since_a_time_is_found(self, view: View) -> None:
        """must §1.5: startingTimestamp gives the earliest version at or after it: the first one for a time
        before all of them."""
        response, first = view.table.version(startingTimestamp=LONG_AGO), view.versions[0]
        version = response.expect_status(200).version
        response.expect(version <= first, f"at most {first}", version)

    def a_time_after_all_versions_is_400(self, view: View) -> None:
        """must §1.5, §0.19: startingTimestamp after the last commit is 400."""
        if view.versions:
            view.table.refuse_times(FAR_AHEAD)

    def a_time_that_is_none_is_400(self, table: Table) -> None:
        """must §1.0, §1.5: A startingTimestamp that is not a time in ISO-8601 is 400."""
        table.refuse_times("yesterday", "2022-13-01T00:00:00Z", "1700000000000", "2022-01-01T25:00:00Z")

    def a_time_may_have_an_offset_and_fractions(self, view: View) -> None:
        """should §1.0: Times are taken with numeric offsets and with fractions of seconds, too."""
        if view.versions:
            wanted = view.table.version(startingTimestamp=LONG_AGO).expect_status(200).version
            for time in ("00:00:00.123Z", "00:00:00-08:00", "05:30:00.000001+05:30"):
                response = view.table.version(startingTimestamp=f"1970-01-02T{time}")
                response.expect_status(200).expect_version(wanted)

    def a_date_alone_is_400(self, table: Table) -> None:
        """should §1.0: A date without a time of day is 400, as the reference server answers."""
        table.refuse_times("2022-01-01")


PYTHON_FEATURES = "deletionvectors,columnmapping,timestampntz"
MALFORMED = (
    *("=;;==,;", "responseformat=", "responseformat", "responseformat=avro"),
    *(";" * 5000, "a=" + "b," * 3000),
)


class Negotiation(Group):
    """How client and server agree on a response format."""

    def clients_that_ask_for_nothing_get_parquet(self, table: Table) -> None:
        """must §1.11, §2.5: Without the header, or with responseformat=parquet, the answer is in parquet format
        or a refusal by 400."""
        for announced in (None, "responseformat=parquet", "", "asyncquery=false"):
            for response in _ask_both(table, announced):
                if response.expect_answer_or_refusal(400):
                    response.expect_format(PARQUET)

    def the_order_of_formats_means_nothing(self, table: Table) -> None:
        """must §1.11, §2.5: A list of formats is answered with one of them, the same in either order and for
        query and metadata."""
        table.require_readable()
        announced = [
            f"responseformat={both};readerfeatures={FEATURES}" for both in ("parquet,delta", "delta,parquet")
        ]
        responses = [response for text in announced for response in _ask_both(table, text)]
        formats = {response.expect_status(200).format for response in responses}
        responses[0].expect(formats in ({PARQUET}, {DELTA}), "one format for all", sorted(formats))

    def the_python_client_finds_its_format(self, table: Table) -> None:
        """must §2.5, §6.1: What the metadata call chooses of delta,parquet the query answers, as the Python
        client relies on."""
        response = table.metadata(f"responseformat=delta,parquet;readerfeatures={PYTHON_FEATURES}")
        require(response.status != 400, f"{table.name} needs features that the Python client lacks")
        format = response.expect_status(200).format
        alone = f"responseformat=delta;readerfeatures={PYTHON_FEATURES}" if format == DELTA else None
        table.query({}, alone).expect_status(200).expect_format(format)

    def capabilities_are_read_in_any_case(self, view: DeltaView) -> None:
        """must §1.11: Keys and values of the header are read in any case, with unknown keys among them."""
        announced = str(view.announced)
        mixed, spaced = f"lakeshare=1,2;{announced};x", announced.replace(";", " ; ")
        for text in (announced.upper(), announced.lower(), mixed, spaced):
            for response in _ask_both(view.table, text):
                response.expect_status(200).expect_format(DELTA)

    def a_header_that_makes_no_sense_is_no_fault_of_the_server(self, table: Table) -> None:
        """must §1.11, §0.19: A malformed header is ignored or 400, never 5xx."""
        for text in MALFORMED:
            for response in _ask_both(table, text):
                response.expect_answer_or_refusal(400, 413, 431)

    def features_the_client_lacks_are_refused(self, view: DeltaView) -> None:
        """must §2.5, §0.19: Delta lines that need reader features go to no client that does not announce them: 400."""
        response = _query_without_features(view)
        if response.expect_answer_or_refusal(400):
            # A server may omit features that this snapshot does not use.
            needed = _get_needed_features(response.read())
            response.expect(not needed, "a refusal, or lines without reader features", needed)

    def features_the_client_lacks_are_named(self, view: DeltaView) -> None:
        """should §2.5: The refusal names the reader features the client would have to announce."""
        response = _query_without_features(view)
        require(response.status != 200, "no snapshot makes use of its reader features")
        message = response.refusal(400).message.lower()
        for feature in _get_needed_features(view.metadata):
            response.expect(feature.lower() in message, f"a refusal that names {feature}", message)

    def what_parquet_cannot_carry_is_refused(self, table: Table) -> None:
        """must §2.5, §0.19: A table that needs reader features is refused to clients of parquet format, by 400."""
        table.require_delta_only()
        for announced in (None, "responseformat=parquet"):
            table.metadata(announced).refusal(400)
            table.query({}, announced).refusal(400)


def _ask_both(table: Table, announced: str | None) -> tuple[Response, Response]:
    return table.metadata(announced), table.query({"limitHint": 0}, announced)


def _get_needed_features(reply: Response) -> list[str]:
    """The reader features that the lines of a reply need."""
    is_second = reply.protocol.min_reader_version == 2
    return reply.protocol.reader_features or (["columnMapping"] if is_second and reply.is_mapped else [])


def _query_without_features(view: View) -> Response:
    require(_get_needed_features(view.metadata), "no table needs reader features")
    return view.table.query({}, "responseformat=delta")
