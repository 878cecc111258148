"""Defects of metadata and of negotiation.

Each mapping has a defect for every case of its group; `FURTHER` has those of cases that hold several rules.
"""

from collections.abc import Mapping

from tests.fakes.defects.tools import (
    CAPABILITIES,
    METADATA,
    QUERY,
    READS,
    Defect,
    Named,
    announced,
    answer,
    anything,
    asked,
    at,
    drop,
    each,
    header,
    in_schema,
    lines,
    metadata,
    protocol,
    put,
    with_end,
)
from tests.fakes.model_requests import Request


def _late(request: Request) -> bool:
    return "version" in request.params and "timestamp" not in request.params


METADATAS: Mapping[str, Defect] = {
    "metadata-is-exactly-two-lines": at(METADATA, lines(with_end)),
    "metadata-is-two-lines-whatever-is-announced": at(
        METADATA, lines(with_end), when=announced("includeendstreamaction")
    ),
    "table-answers-are-ndjson": at(QUERY, header("Content-Type", "application/json; charset=utf-8")),
    "a-query-begins-with-the-same-head": at(METADATA, metadata(put(name="other"))),
    "parquet-protocol-is-reader-version-1": at(METADATA, each("protocol", put(minReaderVersion=2))),
    "metadata-has-the-documented-fields": at(METADATA, metadata(drop("partitionColumns"))),
    "parquet-schemas-hold-what-old-clients-know": at(
        METADATA, metadata(in_schema('"timestamp"', '"timestamp_ntz"'))
    ),
    "delta-metadata-has-the-size": at(METADATA, each("metaData", drop("size"))),
    "metadata-has-size-and-number-of-files": at(METADATA, each("metaData", drop("numFiles"))),
    "size-and-number-of-files-are-true": at(QUERY, each("metaData", put(numFiles=77))),
    "the-delta-protocol-is-well-formed": at(METADATA, protocol(put(minReaderVersion=2))),
    "features-of-the-log-are-left-out": at(
        METADATA, protocol(lambda found: found.get("readerFeatures", []).append("v2Checkpoint"))
    ),
    "reader-features-stand-in-both-lists": at(
        METADATA, protocol(lambda found: found.get("readerFeatures", [""]).pop())
    ),
    "the-writer-protocol-fits-the-change-data-feed": at(METADATA, protocol(put(minWriterVersion=2))),
    "the-format-is-in-the-header": at(QUERY, header(CAPABILITIES, "responseformat=DELTA;x")),
    "metadata-of-a-version-is-returned": at(METADATA, header("Delta-Table-Version", "99"), when=_late),
    "metadata-of-no-version-is-400": at(METADATA, answer(200), when=asked("timestamp")),
}
NEGOTIATION: Mapping[str, Defect] = {
    "clients-that-ask-for-nothing-get-parquet": at(
        QUERY,
        header(CAPABILITIES, "responseformat=delta"),
        when=lambda request: CAPABILITIES not in request.headers,
    ),
    "the-order-of-formats-means-nothing": at(
        METADATA, header(CAPABILITIES, "responseformat=delta"), when=announced("=delta,parquet")
    ),
    "the-python-client-finds-its-format": at(
        QUERY,
        header(CAPABILITIES, "responseformat=parquet"),
        when=announced("=deletionvectors,columnmapping,timestampntz"),
    ),
    "capabilities-are-read-in-any-case": at(
        METADATA, answer(400), when=lambda request: "RESPONSEFORMAT" in request.headers.get(CAPABILITIES, "")
    ),
    "a-header-that-makes-no-sense-is-no-fault-of-the-server": at(READS, answer(500), when=announced(";;;;")),
    "features-the-client-lacks-are-refused": at(
        QUERY, answer(200), when=lambda request: request.headers.get(CAPABILITIES) == "responseformat=delta"
    ),
    "features-the-client-lacks-are-named": at(
        QUERY, anything(lambda text: text.replace(b"columnmapping", b"something"))
    ),
    "what-parquet-cannot-carry-is-refused": at(
        METADATA, answer(500), when=announced("responseformat=parquet")
    ),
}
FURTHER: tuple[Named, ...] = (
    ("metadata.metadata-has-the-documented-fields", at(METADATA, metadata(put(id="")))),
    ("metadata.metadata-has-the-documented-fields", at(METADATA, metadata(put(format={"provider": "orc"})))),
    ("metadata.metadata-has-the-documented-fields", at(METADATA, metadata(put(partitionColumns=["none"])))),
    ("metadata.metadata-has-the-documented-fields", at(METADATA, metadata(put(schemaString="struct<>")))),
    ("metadata.metadata-has-the-documented-fields", at(METADATA, metadata(put(configuration={"a": True})))),
    ("metadata.metadata-has-the-documented-fields", at(METADATA, each("metaData", put(numFiles=True)))),
    ("metadata.metadata-has-the-documented-fields", at(METADATA, each("metaData", put(size="12")))),
    (
        "metadata.parquet-protocol-is-reader-version-1",
        at(METADATA, each("protocol", put(minReaderVersion=True))),
    ),
    ("metadata.size-and-number-of-files-are-true", at(QUERY, each("metaData", put(size=77)))),
    ("metadata.the-delta-protocol-is-well-formed", at(METADATA, protocol(drop("writerFeatures")))),
    ("metadata.the-delta-protocol-is-well-formed", at(METADATA, protocol(put(minWriterVersion="7")))),
    ("metadata.the-format-is-in-the-header", at(QUERY, header(CAPABILITIES, None))),
    ("metadata.table-answers-are-ndjson", at(METADATA, header("Content-Type", "application/x-ndjson"))),
    (
        "metadata.metadata-of-no-version-is-400",
        at(METADATA, answer(500), when=lambda r: r.params.get("version") == "x"),
    ),
    (
        "negotiation.clients-that-ask-for-nothing-get-parquet",
        at(METADATA, answer(500), when=lambda r: r.headers.get(CAPABILITIES) == ""),
    ),
)
