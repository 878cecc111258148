"""Defects of metadata, negotiation, snapshots, their files and the bytes behind them."""

import json
from collections.abc import Callable, Mapping

from tests.fakes.defects.tools import (
    CAPABILITIES,
    DATA,
    METADATA,
    QUERY,
    READS,
    Defect,
    Json,
    answer,
    anything,
    asked,
    at,
    content,
    drop,
    each,
    files,
    header,
    is_file,
    lines,
    metadata,
    plainly,
    protocol,
    put,
    without_files,
)
from tests.fakes.model_answers import TOKEN
from tests.fakes.model_requests import Reply, Request


def _announced(text: str) -> Callable[[Request], bool]:
    return lambda request: text in request.headers.get(CAPABILITIES, "").lower()


def _renamed(old: str, new: str) -> Callable[[Json], None]:
    """Another type in the schema."""
    return lambda found: found.update(schemaString=found["schemaString"].replace(f'"{old}"', f'"{new}"'))


def _vector(edit: Callable[[Json], object]) -> Callable[[Json, Json], object]:
    return lambda _, inner: edit(inner["deletionVector"]) if "deletionVector" in inner else None


def _relative(vector: Json) -> None:
    if vector["storageType"] == "p":
        vector.update(storageType="u")


def _stats(edit: Callable[[Json], object]) -> Callable[[Json, Json], object]:
    def edited(_: Json, inner: Json) -> None:
        if "stats" in inner:
            stats = json.loads(inner["stats"])
            edit(stats)
            inner["stats"] = json.dumps(stats)

    return edited


def _partition(name: str, value: str) -> Callable[[Json, Json], object]:
    def edited(_: Json, inner: Json) -> None:
        if name in inner["partitionValues"]:
            inner["partitionValues"][name] = value

    return edited


def _url(edit: Callable[[str], str]) -> Callable[[Json, Json], object]:
    def edited(_: Json, inner: Json) -> None:
        key = "url" if "url" in inner else "path"
        inner[key] = edit(inner[key])

    return edited


def _with_end(found: list[Json]) -> list[Json]:
    return [*found, {"endStreamAction": {}}]


def _all_ids_alike(found: list[Json]) -> list[Json]:
    for line in found:
        if is_file(line):
            line[next(iter(line))]["id"] = "same"
    return found


_seen: list[int] = []


def _other_ids_each_time(request: Request, reply: Reply) -> None:
    _seen.append(1)
    at(QUERY, files(lambda outer, _: outer.update(id=f"{outer['id']}{len(_seen)}")))(request, reply)


def _has_range(request: Request) -> bool:
    return "range" in request.headers


def _whole(reply: Reply) -> None:
    if reply.status == 206:
        reply.status = 200


def _suffix(request: Request) -> bool:
    return request.headers.get("range", "").startswith("bytes=-")


def _late(request: Request) -> bool:
    return "version" in request.params and "timestamp" not in request.params


METADATAS: Mapping[str, Defect] = {
    "metadata-is-exactly-two-lines": at(METADATA, lines(_with_end)),
    "metadata-is-two-lines-whatever-is-announced": at(
        METADATA, lines(_with_end), when=_announced("includeendstreamaction")
    ),
    "table-answers-are-ndjson": at(QUERY, header("Content-Type", "application/json; charset=utf-8")),
    "a-query-begins-with-the-same-head": at(METADATA, metadata(put(name="other"))),
    "parquet-protocol-is-reader-version-1": at(METADATA, each("protocol", put(minReaderVersion=2))),
    "metadata-has-the-documented-fields": at(METADATA, metadata(drop("partitionColumns"))),
    "parquet-schemas-hold-what-old-clients-know": at(
        METADATA, metadata(_renamed("timestamp", "timestamp_ntz"))
    ),
    "delta-metadata-tells-the-size": at(METADATA, each("metaData", drop("size"))),
    "metadata-tells-size-and-number-of-files": at(METADATA, each("metaData", drop("numFiles"))),
    "size-and-number-of-files-are-true": at(QUERY, each("metaData", put(numFiles=77))),
    "the-delta-protocol-is-well-formed": at(METADATA, protocol(put(minReaderVersion=2))),
    "features-of-the-log-are-left-out": at(
        METADATA, protocol(lambda found: found.get("readerFeatures", []).append("v2Checkpoint"))
    ),
    "reader-features-stand-in-both-lists": at(
        METADATA, protocol(lambda found: found.get("readerFeatures", [""]).pop())
    ),
    "the-writer-protocol-fits-the-change-data-feed": at(METADATA, protocol(put(minWriterVersion=2))),
    "the-format-is-told": at(QUERY, header(CAPABILITIES, "responseformat=DELTA;x")),
    "metadata-of-a-version-is-told": at(METADATA, header("Delta-Table-Version", "99"), when=_late),
    "metadata-of-no-version-is-400": at(METADATA, answer(200), when=asked("timestamp")),
}
NEGOTIATION: Mapping[str, Defect] = {
    "clients-that-ask-for-nothing-get-parquet": at(
        QUERY,
        header(CAPABILITIES, "responseformat=delta"),
        when=lambda request: CAPABILITIES not in request.headers,
    ),
    "the-order-of-formats-means-nothing": at(
        METADATA, header(CAPABILITIES, "responseformat=delta"), when=_announced("=delta,parquet")
    ),
    "the-python-client-finds-its-format": at(
        QUERY,
        header(CAPABILITIES, "responseformat=parquet"),
        when=_announced("=deletionvectors,columnmapping,timestampntz"),
    ),
    "capabilities-are-read-in-any-case": at(
        METADATA, answer(400), when=lambda request: "RESPONSEFORMAT" in request.headers.get(CAPABILITIES, "")
    ),
    "a-header-that-makes-no-sense-is-no-fault-of-the-server": at(READS, answer(500), when=_announced(";;;;")),
    "features-the-client-lacks-are-refused": at(
        QUERY, answer(200), when=lambda request: request.headers.get(CAPABILITIES) == "responseformat=delta"
    ),
    "features-the-client-lacks-are-named": at(
        QUERY, anything(lambda text: text.replace(b"columnmapping", b"something"))
    ),
    "what-parquet-cannot-carry-is-refused": at(
        METADATA, answer(500), when=_announced("responseformat=parquet")
    ),
}
SNAPSHOTS: Mapping[str, Defect] = {
    "a-snapshot-is-head-and-files": at(
        QUERY, lines(lambda found: [*found, {"comment": {"text": "hello"}}]), when=plainly
    ),
    "nobody-gets-an-end-that-did-not-ask": at(QUERY, lines(_with_end), when=plainly),
    "parquet-files-have-the-documented-fields": at(QUERY, files(_url(lambda _: "file:///tmp/x"))),
    "delta-files-have-the-documented-fields": at(
        QUERY, files(lambda _, inner: inner.pop("modificationTime", 0))
    ),
    "partition-values-are-of-the-partition-columns": at(
        QUERY, files(lambda _, inner: inner.update(partitionValues={}))
    ),
    "partition-values-are-written-as-their-type-is": at(QUERY, files(_partition("day", "01/02/2024"))),
    "statistics-are-json": at(QUERY, files(lambda _, inner: inner.update(stats="numRecords=1"))),
    "ids-are-unique": at(QUERY, lines(_all_ids_alike)),
    "ids-stay": _other_ids_each_time,
    "urls-live-as-long-as-clients-need": at(
        QUERY, files(lambda outer, _: outer.update(expirationTimestamp=1_700_000_000_000))
    ),
    "urls-tell-when-they-end": at(QUERY, files(lambda outer, _: outer.pop("expirationTimestamp"))),
    "urls-do-not-hold-the-token": at(QUERY, files(_url(lambda url: f"{url}&token={TOKEN}"))),
    "a-plain-read-tells-no-version-in-its-lines": at(QUERY, files(lambda outer, _: outer.update(version=1))),
    "an-empty-object-asks-for-all": at(QUERY, without_files(), when=asked("lakeshareConformance")),
    "the-content-type-of-a-request-is-optional": at(
        QUERY, answer(415), when=lambda request: request.headers.get("content-type") == ""
    ),
    "both-formats-answer-the-same-files": at(QUERY, without_files(), when=_announced("delta")),
}
DELTA_FORMAT: Mapping[str, Defect] = {
    "urls-have-a-signature-the-python-client-knows": at(
        QUERY, content(lambda text: text.replace(b"X-Amz-Signature", b"signature"))
    ),
    "mapped-columns-keep-their-mapping": at(
        QUERY,
        metadata(
            lambda found: found.update(schemaString=found["schemaString"].replace("Mapping.id", "Mapping.x"))
        ),
    ),
    "row-tracking-is-whole": at(QUERY, files(lambda _, inner: inner.pop("baseRowId", 0))),
}
DELETION_VECTORS: Mapping[str, Defect] = {
    "vectors-have-the-documented-fields": at(QUERY, files(_vector(_relative))),
    "stored-vectors-have-an-id": at(QUERY, files(lambda outer, _: outer.pop("deletionVectorFileId", 0))),
    "vectors-can-be-read": at(
        DATA, content(lambda data: b"\x02" + data[1:] if data[:1] == b"\x01" else data)
    ),
    "vectors-delete-no-more-than-there-is": at(QUERY, files(_vector(put(cardinality=1000)))),
    "tables-with-features-are-paged-and-streamed": at(
        QUERY, answer(400), when=lambda request: b"startingVersion" in request.body
    ),
}
DATA_FILES: Mapping[str, Defect] = {
    "a-file-is-as-long-as-told": at(QUERY, files(lambda _, inner: inner.update(size=inner["size"] + 1))),
    "a-range-is-206": at(DATA, _whole, when=_has_range),
    "a-suffix-range-is-206": at(DATA, answer(501), when=_suffix),
    "a-range-beyond-the-end-is-416": at(DATA, lambda reply: setattr(reply, "status", 200), when=_has_range),
    "head-tells-the-length-or-refuses": at(DATA, answer(405), method="HEAD"),
    "head-tells-that-ranges-are-served": at(DATA, header("Accept-Ranges", None), method="HEAD"),
    "a-url-that-was-altered-is-refused": at(
        DATA, answer(200), when=lambda request: "X-Amz-Signature" not in request.params
    ),
    "files-are-parquet-with-the-columns-of-the-schema": at(QUERY, metadata(_renamed("long", "string"))),
    "statistics-count-the-rows": at(QUERY, files(_stats(put(numRecords=99)))),
    "statistics-hold-the-rows": at(QUERY, files(_stats(lambda stats: stats["maxValues"].update(id=1)))),
}
TIME_TRAVEL: Mapping[str, Defect] = {
    "a-version-is-answered-as-asked": at(QUERY, header("Delta-Table-Version", "6"), when=asked("version")),
    "a-version-asked-for-is-told-in-metadata": at(
        QUERY, each("metaData", drop("version")), when=asked("version")
    ),
    "the-latest-version-is-the-latest-snapshot": at(QUERY, without_files(), when=asked("version")),
    "versions-are-read-from-text-too": at(
        QUERY, answer(400), when=lambda request: b'"version": "' in request.body
    ),
    "a-time-gives-the-version-of-that-time": at(
        METADATA, header("Delta-Table-Version", "6"), when=asked("timestamp")
    ),
    "a-time-out-of-reach-is-400": at(QUERY, answer(500), when=asked("timestamp")),
    "a-version-out-of-reach-is-400": at(
        QUERY, answer(500), when=lambda request: b'{"version": 10' in request.body
    ),
}
