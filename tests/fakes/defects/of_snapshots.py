"""Defects of snapshots and their files, of the delta format and of time travel.

Each mapping has a defect for every case of its group; `FURTHER` has those of cases that hold several rules.
"""

from collections.abc import Callable, Mapping

from tests.fakes.defects.tools import (
    METADATA,
    QUERY,
    VERSION,
    Defect,
    InFile,
    Json,
    Named,
    announced,
    answer,
    asked,
    at,
    body,
    content,
    drop,
    each,
    files,
    header,
    in_schema,
    is_file,
    lines,
    metadata,
    plainly,
    put,
    stats,
    vector,
    with_end,
    without_files,
)
from tests.fakes.model_answers import TOKEN
from tests.fakes.model_requests import Reply, Request


def _partition(name: str, value: str) -> InFile:
    def edited(_: Json, inner: Json) -> None:
        if name in inner["partitionValues"]:
            inner["partitionValues"][name] = value

    return edited


def _url(edit: Callable[[str], str]) -> InFile:
    def edited(_: Json, inner: Json) -> None:
        key = "url" if "url" in inner else "path"
        inner[key] = edit(inner[key])

    return edited


def _all_ids_alike(found: list[Json]) -> list[Json]:
    for line in found:
        if is_file(line):
            line[next(iter(line))]["id"] = "same"
    return found


_seen: list[int] = []


def _other_ids_each_time(request: Request, reply: Reply) -> None:
    _seen.append(1)
    at(QUERY, files(lambda outer, _: outer.update(id=f"{outer['id']}{len(_seen)}")))(request, reply)


def _inner(**values: object) -> InFile:
    return lambda _, inner: inner.update(values)


def _outer(**values: object) -> InFile:
    return lambda outer, _: outer.update(values)


def _two_actions(found: list[Json]) -> list[Json]:
    for line in found:
        if "deltaSingleAction" in line.get("file", {}):
            line["file"]["deltaSingleAction"]["remove"] = {}
    return found


SNAPSHOTS: Mapping[str, Defect] = {
    "a-snapshot-is-head-and-files": at(
        QUERY, lines(lambda found: [*found, {"comment": {"text": "hello"}}]), when=plainly
    ),
    "an-end-is-sent-on-request-only": at(QUERY, lines(with_end), when=plainly),
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
    "urls-have-an-expiry": at(QUERY, files(lambda outer, _: outer.pop("expirationTimestamp"))),
    "urls-do-not-hold-the-token": at(QUERY, files(_url(lambda url: f"{url}&token={TOKEN}"))),
    "a-plain-read-has-no-version-in-its-lines": at(QUERY, files(lambda outer, _: outer.update(version=1))),
    "an-empty-object-asks-for-all": at(QUERY, without_files(), when=asked("lakeshareConformance")),
    "the-content-type-of-a-request-is-optional": at(
        QUERY, answer(415), when=lambda request: request.headers.get("content-type") == ""
    ),
    "both-formats-answer-the-same-files": at(QUERY, without_files(), when=announced("delta")),
}
DELTA_FORMAT: Mapping[str, Defect] = {
    "urls-have-a-signature-the-python-client-knows": at(
        QUERY, content(lambda text: text.replace(b"X-Amz-Signature", b"signature"))
    ),
    "mapped-columns-keep-their-mapping": at(QUERY, metadata(in_schema("Mapping.id", "Mapping.x"))),
    "row-tracking-is-whole": at(QUERY, files(lambda _, inner: inner.pop("baseRowId", 0))),
}
TIME_TRAVEL: Mapping[str, Defect] = {
    "a-version-is-answered-as-asked": at(QUERY, header("Delta-Table-Version", "6"), when=asked("version")),
    "a-requested-version-is-in-metadata": at(QUERY, each("metaData", drop("version")), when=asked("version")),
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
FURTHER: tuple[Named, ...] = (
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
        at(QUERY, metadata(in_schema('"name": "day", "type": "date"', '"name": "day", "type": "integer"'))),
    ),
    ("snapshots.statistics-are-json", at(QUERY, files(stats(put(numRecords="12"))))),
    ("snapshots.statistics-are-json", at(QUERY, files(stats(put(minValues={"lakeshare": 1}))))),
    (
        "delta-format.urls-have-a-signature-the-python-client-knows",
        at(
            QUERY,
            files(
                vector(
                    lambda found: found.update(pathOrInlineDv=found["pathOrInlineDv"].replace("X-Amz", "X")),
                    "p",
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
        at(QUERY, metadata(in_schema(".physicalName", ".name"))),
    ),
    (
        "time-travel.a-version-is-answered-as-asked",
        at(QUERY, each("metaData", put(version=77)), when=asked("version")),
    ),
    (
        "time-travel.a-time-gives-the-version-of-that-time",
        at(QUERY, header("Delta-Table-Version", "6"), when=asked("timestamp")),
    ),
    (
        "time-travel.a-time-gives-the-version-of-that-time",
        at(VERSION, header("Delta-Table-Version", "0"), when=asked("startingTimestamp")),
    ),
    (
        "time-travel.a-time-out-of-reach-is-400",
        at(QUERY, answer(200), when=lambda r: "2999" in str(body(r).get("timestamp"))),
    ),
)
