"""Defects of the bytes behind URLs: data files, their statistics, and deletion vectors.

Each mapping has a defect for every case of its group; `FURTHER` has those of cases that hold several rules.
"""

from collections.abc import Callable, Mapping

from tests.fakes.defects.tools import (
    DATA,
    QUERY,
    Change,
    Defect,
    Named,
    answer,
    at,
    content,
    drop,
    files,
    header,
    in_schema,
    metadata,
    put,
    stats,
    vector,
)
from tests.fakes.model_requests import Reply, Request


def _has_range(request: Request) -> bool:
    return "range" in request.headers


def _whole(reply: Reply) -> None:
    if reply.status == 206:
        reply.status = 200


def _suffix(request: Request) -> bool:
    return request.headers.get("range", "").startswith("bytes=-")


def _is_vector(data: bytes) -> bool:
    return data[:1] == b"\x01"


def _bytes_at(place: int, other: bytes) -> Callable[[bytes], bytes]:
    return lambda data: data[:place] + other + data[place + len(other) :] if _is_vector(data) else data


def _part(name: str, value: str) -> Change:
    def change(reply: Reply) -> None:
        if reply.status == 206:
            reply.headers[name] = value

    return change


DELETION_VECTORS: Mapping[str, Defect] = {
    "vectors-have-the-documented-fields": at(QUERY, files(vector(put(storageType="u"), "p"))),
    "stored-vectors-have-an-id": at(QUERY, files(lambda outer, _: outer.pop("deletionVectorFileId", 0))),
    "vectors-can-be-read": at(DATA, content(_bytes_at(0, b"\x02"))),
    "vectors-delete-no-more-than-there-is": at(QUERY, files(vector(put(cardinality=1000)))),
    "tables-with-features-are-paged-and-streamed": at(
        QUERY, answer(400), when=lambda request: b"startingVersion" in request.body
    ),
}
DATA_FILES: Mapping[str, Defect] = {
    "a-file-is-as-long-as-its-size": at(QUERY, files(lambda _, inner: inner.update(size=inner["size"] + 1))),
    "a-range-is-206": at(DATA, _whole, when=_has_range),
    "a-suffix-range-is-206": at(DATA, answer(501), when=_suffix),
    "a-range-beyond-the-end-is-416": at(DATA, lambda reply: setattr(reply, "status", 200), when=_has_range),
    "head-returns-the-length-or-refuses": at(DATA, answer(405), method="HEAD"),
    "head-announces-ranges": at(DATA, header("Accept-Ranges", None), method="HEAD"),
    "a-url-that-was-altered-is-refused": at(
        DATA, answer(200), when=lambda request: "X-Amz-Signature" not in request.params
    ),
    "urls-end-no-sooner-than-their-expiry": at(
        QUERY,
        files(lambda outer, _: outer.update(expirationTimestamp=outer["expirationTimestamp"] + 3_600_000)),
    ),
    "urls-are-for-reading-only": at(DATA, answer(200), method="PUT"),
    "files-are-parquet-with-the-columns-of-the-schema": at(QUERY, metadata(in_schema('"long"', '"string"'))),
    "statistics-count-the-rows": at(QUERY, files(stats(put(numRecords=99)))),
    "statistics-hold-the-rows": at(QUERY, files(stats(lambda found: found["maxValues"].update(id=1)))),
}
FURTHER: tuple[Named, ...] = (
    (
        "deletion-vectors.vectors-have-the-documented-fields",
        at(QUERY, files(vector(put(pathOrInlineDv="ab"), "p"))),
    ),
    (
        "deletion-vectors.vectors-have-the-documented-fields",
        at(QUERY, files(vector(drop("cardinality"), "p"))),
    ),
    ("deletion-vectors.vectors-have-the-documented-fields", at(QUERY, files(vector(put(offset="1"), "p")))),
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
    ("deletion-vectors.vectors-can-be-read", at(QUERY, files(vector(put(cardinality=1), "p")))),
    ("deletion-vectors.vectors-can-be-read", at(QUERY, files(vector(put(pathOrInlineDv="ö" * 10), "i")))),
    ("deletion-vectors.vectors-can-be-read", at(QUERY, files(vector(put(sizeInBytes=10_000), "i")))),
    ("data-files.a-file-is-as-long-as-its-size", at(DATA, content(lambda data: data[:-1]))),
    ("data-files.a-file-is-as-long-as-its-size", at(DATA, answer(403))),
    ("data-files.urls-are-for-reading-only", at(DATA, answer(204), method="DELETE")),
    ("data-files.urls-are-for-reading-only", at(DATA, answer(412), method="DELETE")),
    (
        "data-files.files-are-parquet-with-the-columns-of-the-schema",
        at(QUERY, metadata(in_schema('"long"', '"integer"'))),
    ),
    ("data-files.a-range-is-206", at(DATA, _part("Content-Range", "bytes 0-3/*"))),
    ("data-files.a-range-is-206", at(DATA, content(lambda data: data[::-1]), when=_has_range)),
    ("data-files.head-returns-the-length-or-refuses", at(DATA, header("Content-Length", "0"), method="HEAD")),
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
            at(QUERY, files(stats(lambda found, part=part, value=value: found.update({part: value})))),
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
