"""The lines of an answer in figures: which files, how many bytes and rows, in either response format."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx

KINDS = ("add", "cdf", "cdc", "remove")


@dataclass(frozen=True)
class ToldFile:
    """A file that an answer names; rows and version only where the line tells them."""

    kind: str
    size_bytes: int
    rows: int | None
    version: int | None
    url: str
    partition_values: dict[str, str | None]


@dataclass(frozen=True)
class Figures:
    """What files sum up to."""

    files: int
    size_bytes: int
    rows: int | None


def lines_of(answer: httpx.Response) -> list[dict[str, Any]]:
    """The lines of a table's answer."""
    return [json.loads(line) for line in answer.text.splitlines()]


def metadata_of(lines: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The first metadata line's content, the same in both formats: schema and partition columns beside the sizes."""
    told = next(line["metaData"] for line in lines if "metaData" in line)
    return {**told.get("deltaMetadata", {}), **told}


def files_of(lines: Iterable[dict[str, Any]]) -> Iterator[ToldFile]:
    """The files, in the order they are told."""
    for line in lines:
        if "file" in line and "deltaSingleAction" in line["file"]:
            told = line["file"]
            for kind, action in told["deltaSingleAction"].items():
                if kind in KINDS:
                    yield _file(kind, action, action["path"], told.get("version"))
        elif "file" in line:
            yield _file("add", line["file"], line["file"]["url"], line["file"].get("version"))
        else:
            for kind in KINDS:
                if kind in line:
                    yield _file(kind, line[kind], line[kind]["url"], line[kind].get("version"))


def figures(files: Iterable[ToldFile]) -> Figures:
    """Number, bytes and rows of files; no rows where one of them does not tell."""
    count, size_bytes = 0, 0
    rows: int | None = 0
    for one in files:
        count, size_bytes = count + 1, size_bytes + one.size_bytes
        rows = None if rows is None or one.rows is None else rows + one.rows
    return Figures(count, size_bytes, rows)


def _file(kind: str, told: dict[str, Any], url: str, version: int | None) -> ToldFile:
    rows = json.loads(told["stats"]).get("numRecords") if told.get("stats") else None
    vector = told.get("deletionVector") or {}
    return ToldFile(
        kind="cdf" if kind == "cdc" else kind,
        size_bytes=int(told.get("size") or 0),
        rows=None if rows is None else rows - int(vector.get("cardinality") or 0),
        version=version,
        url=url,
        partition_values=told.get("partitionValues") or {},
    )
