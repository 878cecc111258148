"""More defects for cases that hold several rules: of listings, metadata, snapshots, and the bytes of files."""

import json
from collections.abc import Callable

from tests.fakes.defects.of_listings import CREDENTIALS, WRONG
from tests.fakes.defects.tools import (
    CAPABILITIES,
    DATA,
    LISTING,
    METADATA,
    QUERY,
    SCHEMA_TABLES,
    TABLE,
    VERSION,
    Defect,
    Json,
    answer,
    asked,
    at,
    content,
    drop,
    each,
    files,
    header,
    items,
    lines,
    metadata,
    page,
    protocol,
    put,
)
from tests.fakes.model_requests import Reply, Request

Named = tuple[str, Defect]


def _stats(edit: Callable[[Json], object]) -> Callable[[Json, Json], object]:
    def edited(_: Json, inner: Json) -> None:
        if "stats" in inner:
            stats = json.loads(inner["stats"])
            edit(stats)
            inner["stats"] = json.dumps(stats)

    return edited


def _inner(**values: object) -> Callable[[Json, Json], object]:
    return lambda _, inner: inner.update(values)


def _outer(**values: object) -> Callable[[Json, Json], object]:
    return lambda outer, _: outer.update(values)


def _vector(edit: Callable[[Json], object], kind: str = "p") -> Callable[[Json, Json], object]:
    def edited(_: Json, inner: Json) -> None:
        if inner.get("deletionVector", {}).get("storageType") == kind:
            edit(inner["deletionVector"])

    return edited


def _two_actions(found: list[Json]) -> list[Json]:
    for line in found:
        if "deltaSingleAction" in line.get("file", {}):
            line["file"]["deltaSingleAction"]["remove"] = {}
    return found


def _is_vector(data: bytes) -> bool:
    return data[:1] == b"\x01"


def _bytes_at(place: int, other: bytes) -> Callable[[bytes], bytes]:
    return lambda data: data[:place] + other + data[place + len(other) :] if _is_vector(data) else data


def _part(name: str, value: str) -> Callable[[Reply], None]:
    def change(reply: Reply) -> None:
        if reply.status == 206:
            reply.headers[name] = value

    return change


def _given(edit: Callable[[Json], object]) -> Defect:
    return at(CREDENTIALS, page(lambda found: edit(found["credentials"])))


def _page_all(request: Request) -> bool:
    return request.params.get("maxResults") == "0"


OF_LISTINGS: tuple[Named, ...] = (
    (
        "authentication.a-wrong-token-is-refused",
        at("/shares", answer(404), when=lambda r: WRONG in str(r.headers)),
    ),
    (
        "authentication.refusals-are-json",
        at("/shares", header("x", "y"), lambda reply: reply.headers.update({"Content-Type": "text/plain"})),
    ),
    ("listings.listings-are-json", at("/shares", content(lambda _: b"[]"))),
    ("listings.shares-have-the-documented-fields", at("/shares", items(drop("name")))),
    (
        "listings.shares-have-the-documented-fields",
        at("/shares", items(put(properties={str(n): "" for n in range(51)}))),
    ),
    ("listings.shares-have-the-documented-fields", at("/shares", items(put(displayName="x" * 256)))),
    (
        "listings.schemas-name-themselves-and-their-share",
        at("/shares/[^/]+/schemas", items(put(share="other"))),
    ),
    ("listings.tables-have-the-documented-fields", at(SCHEMA_TABLES, items(put(accessModes=["file"])))),
    ("listings.tables-have-the-documented-fields", at(SCHEMA_TABLES, items(put(auxiliaryLocations="x")))),
    ("listings.tables-have-the-documented-fields", at("/shares/[^/]+/all-tables", items(drop("schema")))),
    ("listings.names-are-made-of-allowed-characters", at("/shares/[^/]+/all-tables", items(put(name="a b")))),
    ("listings.names-are-made-of-allowed-characters", at("/shares", items(put(name="x" * 256)))),
    ("listings.names-are-percent-decoded-once", at(".*%25.*", answer(200))),
    ("listings.a-table-tells-its-format", at(TABLE, page(put(name="other")))),
    ("listings.ids-are-unique-and-stay", at("/shares", items(put(id="same")))),
    (
        "listing-pages.pages-of-one-give-every-item-once",
        at(LISTING, page(put(nextPageToken="")), when=asked("maxResults")),
    ),
    (
        "listing-pages.a-page-of-none-is-allowed",
        at(LISTING, page(put(items=[{"name": "x"}])), when=_page_all),
    ),
    ("listing-pages.a-token-nobody-gave-is-400", at("/shares", answer(200), when=asked("pageToken"))),
    ("versions.the-version-is-a-header", at(VERSION, header("Delta-Table-Version", "v1"))),
    ("versions.the-version-is-a-header", at(VERSION, content(lambda _: b"{}"))),
    ("versions.all-calls-tell-one-version", at(METADATA, header("Delta-Table-Version", None))),
    (
        "credentials.credentials-are-given-as-documented-or-refused",
        _given(put(gcpOauthToken={"oauthToken": "x"})),
    ),
    ("credentials.credentials-are-given-as-documented-or-refused", _given(put(expirationTime=1_700_000_000))),
    (
        "credentials.credentials-are-given-as-documented-or-refused",
        _given(put(awsTempCredentials={"accessKeyId": "x"})),
    ),
    (
        "credentials.credentials-are-given-as-documented-or-refused",
        at(CREDENTIALS, content(lambda text: text.replace(b", ", b",\n"))),
    ),
    ("credentials.credentials-are-given-as-documented-or-refused", at(CREDENTIALS, answer(400))),
    (
        "credentials.credentials-are-given-as-documented-or-refused",
        at(SCHEMA_TABLES, items(drop("accessModes"))),
    ),
    ("credentials.credentials-for-other-places-are-refused", at(CREDENTIALS, answer(200))),
)
OF_METADATA: tuple[Named, ...] = (
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
    ("metadata.the-format-is-told", at(QUERY, header(CAPABILITIES, None))),
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
OF_SNAPSHOTS: tuple[Named, ...] = (
    ("snapshots.a-snapshot-is-head-and-files", at(QUERY, lines(lambda found: found[::-1]))),
    ("snapshots.a-snapshot-is-head-and-files", at(QUERY, content(lambda text: b"\n" + text))),
    ("snapshots.a-snapshot-is-head-and-files", at(QUERY, content(lambda text: text.replace(b"\n", b",\n")))),
    (
        "snapshots.a-snapshot-is-head-and-files",
        at(QUERY, lines(lambda found: [{**line, "more": {}} for line in found])),
    ),
    ("snapshots.a-snapshot-is-head-and-files", at(QUERY, lines(lambda found: [*found[:2], {"file": []}]))),
    ("snapshots.a-snapshot-is-head-and-files", at(QUERY, lines(_two_actions))),
    ("snapshots.parquet-files-have-the-documented-fields", at(QUERY, files(_inner(size="12")))),
    ("snapshots.parquet-files-have-the-documented-fields", at(QUERY, files(_inner(url="/data/x")))),
    (
        "snapshots.parquet-files-have-the-documented-fields",
        at(QUERY, files(_inner(partitionValues={"day": 5}))),
    ),
    ("snapshots.parquet-files-have-the-documented-fields", at(QUERY, files(_inner(stats={"numRecords": 1})))),
    ("snapshots.parquet-files-have-the-documented-fields", at(QUERY, files(_outer(id="")))),
    (
        "snapshots.parquet-files-have-the-documented-fields",
        at(QUERY, files(_outer(expirationTimestamp="soon"))),
    ),
    ("snapshots.delta-files-have-the-documented-fields", at(QUERY, files(_inner(path="day=1/x.parquet")))),
    ("snapshots.delta-files-have-the-documented-fields", at(QUERY, files(_inner(dataChange="true")))),
    ("snapshots.delta-files-have-the-documented-fields", at(QUERY, files(_outer(deletionVectorFileId="")))),
    (
        "snapshots.partition-values-are-of-the-partition-columns",
        at(QUERY, files(_inner(partitionValues={"day": "2024-01-01", "x": "y"}))),
    ),
    (
        "snapshots.partition-values-are-written-as-their-type-is",
        at(
            QUERY,
            metadata(
                lambda found: found.update(
                    schemaString=found["schemaString"].replace(
                        '"name": "day", "type": "date"', '"name": "day", "type": "integer"'
                    )
                )
            ),
        ),
    ),
    ("snapshots.statistics-are-json", at(QUERY, files(_stats(put(numRecords="12"))))),
    ("snapshots.statistics-are-json", at(QUERY, files(_stats(put(minValues={"lakeshare": 1}))))),
    (
        "delta-format.urls-have-a-signature-the-python-client-knows",
        at(
            QUERY,
            files(
                _vector(
                    lambda vector: vector.update(
                        pathOrInlineDv=vector["pathOrInlineDv"].replace("X-Amz", "X")
                    )
                )
            ),
        ),
    ),
    (
        "delta-format.row-tracking-is-whole",
        at(QUERY, files(lambda _, inner: inner.pop("defaultRowCommitVersion", 0))),
    ),
    (
        "delta-format.mapped-columns-keep-their-mapping",
        at(
            QUERY,
            metadata(
                lambda found: found.update(
                    schemaString=found["schemaString"].replace(".physicalName", ".name")
                )
            ),
        ),
    ),
    (
        "deletion-vectors.vectors-have-the-documented-fields",
        at(QUERY, files(_vector(put(pathOrInlineDv="ab")))),
    ),
    ("deletion-vectors.vectors-have-the-documented-fields", at(QUERY, files(_vector(drop("cardinality"))))),
    ("deletion-vectors.vectors-have-the-documented-fields", at(QUERY, files(_vector(put(offset="1"))))),
    (
        "deletion-vectors.stored-vectors-have-an-id",
        at(
            QUERY,
            files(
                lambda outer, inner: (
                    outer.update(deletionVectorFileId="same") if "deletionVector" in inner else None
                )
            ),
        ),
    ),
    ("deletion-vectors.vectors-can-be-read", at(DATA, content(_bytes_at(1, b"\x00\x00\x00\x01")))),
    ("deletion-vectors.vectors-can-be-read", at(DATA, content(_bytes_at(5, b"\x00")))),
    (
        "deletion-vectors.vectors-can-be-read",
        at(DATA, content(lambda data: data[:-1] + b"?" if _is_vector(data) else data)),
    ),
    (
        "deletion-vectors.vectors-can-be-read",
        at(DATA, content(lambda data: data[:-2] if _is_vector(data) else data)),
    ),
    ("deletion-vectors.vectors-can-be-read", at(QUERY, files(_vector(put(cardinality=1))))),
    ("deletion-vectors.vectors-can-be-read", at(QUERY, files(_vector(put(pathOrInlineDv="ö" * 10), "i")))),
    ("deletion-vectors.vectors-can-be-read", at(QUERY, files(_vector(put(sizeInBytes=10_000), "i")))),
    ("data-files.a-file-is-as-long-as-told", at(DATA, content(lambda data: data[:-1]))),
    ("data-files.a-file-is-as-long-as-told", at(DATA, answer(403))),
    ("data-files.a-range-is-206", at(DATA, _part("Content-Range", "bytes 0-3/*"))),
    (
        "data-files.a-range-is-206",
        at(DATA, content(lambda data: data[::-1]), when=lambda r: "range" in r.headers),
    ),
    ("data-files.head-tells-the-length-or-refuses", at(DATA, header("Content-Length", "0"), method="HEAD")),
    (
        "data-files.a-url-that-was-altered-is-refused",
        at(DATA, answer(200), when=lambda r: r.path.endswith("x")),
    ),
    ("data-files.a-url-that-was-altered-is-refused", at(DATA, answer(500))),
    (
        "data-files.files-are-parquet-with-the-columns-of-the-schema",
        at(DATA, content(lambda data: b"PAR1" + data[4:-4] + b"????")),
    ),
    *(
        (
            "data-files.statistics-hold-the-rows",
            at(QUERY, files(_stats(lambda stats, part=part, value=value: stats.update({part: value})))),
        )
        for part, value in (
            ("minValues", {"id": 10**6}),
            ("maxValues", {"amount": -10.5}),
            ("minValues", {"note": "zz"}),
            ("maxValues", {"note": "aa"}),
            ("maxValues", {"at": "2023-12-31T23:59:59.999Z"}),
            ("minValues", {"born": "2100-01-01"}),
            ("nullCount", {"small": 99}),
        )
    ),
)
MORE_OF_LISTINGS = (*OF_LISTINGS, *OF_METADATA, *OF_SNAPSHOTS)
