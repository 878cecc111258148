"""A recipient of our own, at the level of the protocol: everything the Python client never asks for, and no tolerance.

Snapshots, pages, refreshed snapshots, streaming windows, the change data feed and async queries, in both formats.
`protocol_lines.py` checks the lines; here are the headers, the bytes behind the URLs and the rows.
"""

import json
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import httpx
import numpy as np

from tests.builders.canonical import Rows
from tests.builders.deletion_vector import inline_positions, stored_positions
from tests.builders.protocol_lines import Body, FileLine, Format, Head, Line, parse_body, require_dated
from tests.builders.row_images import CHANGE_TYPE, Image, TableShape, file_rows

ALL_FEATURES = frozenset(
    {
        "deletionVectors", "columnMapping", "timestampNtz", "typeWidening", "typeWidening-preview",
        "variantType", "variantType-preview",
    }
)  # fmt: skip
ASYNC_WAIT_S = 60
FEED_COLUMNS = ((CHANGE_TYPE, "string"), ("_commit_version", "long"), ("_commit_timestamp", "timestamp"))
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Answer:
    """One answer, or the pages of one."""

    version: int
    body: Body
    pages: int = 1

    @property
    def head(self) -> Head:
        return self.body.head

    @property
    def files(self) -> tuple[FileLine, ...]:
        return self.body.files

    @property
    def ids(self) -> list[str]:
        return [file.id for file in self.files]


@dataclass(frozen=True)
class ProtocolReader:
    """Reads one table in one format."""

    client: httpx.Client
    """Below the protocol's root, with a token."""
    table: str
    """share.schema.table"""
    format: Format
    data: httpx.Client
    """For the URLs of files: it carries no token."""
    features: frozenset[str] = ALL_FEATURES
    fetched: dict[str, bytes] = field(default_factory=dict, repr=False)

    @property
    def path(self) -> str:
        """The table's path below the root."""
        share, schema, table = self.table.split(".")
        return f"shares/{share}/schemas/{schema}/tables/{table}"

    def version(self, starting_timestamp: str | None = None) -> int:
        """The newest version, or the first at or after a time; asked by GET and by HEAD."""
        given = {} if starting_timestamp is None else {"startingTimestamp": starting_timestamp}
        answer = self.client.get(f"{self.path}/version", params=given)
        assert answer.status_code == 200, f"§1.5: {answer.status_code} {answer.text}"
        assert answer.content == b"", "§1.5: the body is empty"
        if starting_timestamp is None:
            old = self.client.head(self.path)
            assert _version_of(old) == _version_of(answer), "§1.1: HEAD and GET disagree"
        return _version_of(answer)

    def metadata(self, **at: Any) -> Answer:
        """Protocol and metadata, of the newest version or at `version` or `timestamp`."""
        answer = self._checked(self.client.get(f"{self.path}/metadata", params=at, headers=self.headers()))
        lines = answer.content.count(b"\n")
        assert lines == 2, f"§1.6: exactly two lines, not {lines}"
        return self._answer(answer, ends=False)

    def snapshot(self, **body: Any) -> Answer:
        """The files of a version: every field of the query's body by its own name."""
        return self._query(body)

    def pages(self, max_files: int, **body: Any) -> Answer:
        """The same answer in pages, joined."""
        pages = [self._query(body | {"maxFiles": max_files})]
        while token := (pages[-1].body.end or {}).get("nextPageToken"):
            pages.append(self._query(body | {"maxFiles": max_files, "pageToken": token}))
        return joined(pages, max_files)

    def refreshed(self, first: Answer) -> Answer:
        """The same snapshot with new URLs, by the token of an answer asked with `includeRefreshToken`."""
        token = (first.body.end or {}).get("refreshToken")
        assert token, "§1.13: includeRefreshToken gives a refreshToken"
        again = self._query({"refreshToken": token})
        assert again.version == first.version, f"§4: refreshed to {again.version}, not {first.version}"
        lost = set(first.ids) - set(again.ids)
        assert not lost, f"§4: ids that are not refreshed: {sorted(lost)}"
        assert again.head.raw == first.head.raw, "§4: another protocol or metaData after a refresh"
        return again

    def window(self, start: int, end: int | None = None, **body: Any) -> Answer:
        """The data changes of some commits, as a stream reads them; by pages with `maxFiles`."""
        bounds = {"startingVersion": start} | ({} if end is None else {"endingVersion": end})
        max_files = body.pop("maxFiles", None)
        wanted = bounds | body
        answer = self._query(wanted) if max_files is None else self.pages(max_files, **wanted)
        assert answer.version == start, f"§1.7: the header is {answer.version}, not {start}"
        told = answer.head.outer.get("version")
        assert told == start, f"§1.7: metaData.version is {told}, not {start}"
        for file in answer.files:
            _require_window(file, start, end)
            assert file.kind != "cdc", "§1.7: a window has no cdc files"
            changes = self.format == "parquet" or file.action["dataChange"] is True
            assert changes, "§1.7: only files whose data changed"
        _require_later(answer.body.later, start, end, body.get("includeHistoricalProtocol", False))
        return answer

    def changes(self, start: int | None = None, end: int | None = None, **given: Any) -> Answer:
        """The change data feed of some versions; by pages with `maxFiles`."""
        bounds = {"startingVersion": start, "endingVersion": end}
        wanted = {name: value for name, value in bounds.items() if value is not None} | given
        pages = [self._changes(wanted)]
        while token := (pages[-1].body.end or {}).get("nextPageToken"):
            pages.append(self._changes(wanted | {"pageToken": token}))
        answer = joined(pages, wanted.get("maxFiles"))
        if start is not None:
            assert answer.version == start, f"§1.8: the header is {answer.version}, not {start}"
        assert isinstance(answer.head.outer.get("version"), int), "§0.13: metaData.version is always there"
        for file in answer.files:
            _require_window(file, answer.version, end)
        _require_growing(answer.files)
        return answer

    def submitted(self, *, key_as: str = "idempotencyKey", **body: Any) -> Answer:
        """The answer to an async query, asked for until it is there; the key in either spelling (§0.9)."""
        wanted = body | {key_as: str(uuid.uuid4())}
        headers = self.headers(asyncquery="true")
        reply = self.client.post(f"{self.path}/query", json=wanted, headers=headers)
        deadline, query = time.monotonic() + ASYNC_WAIT_S, None
        while (status := _pending(reply)) is not None:
            assert query in (None, status["queryId"]), "§1.9: another queryId while pending"
            query = status["queryId"]
            assert time.monotonic() < deadline, "§1.9: pending for too long"
            time.sleep(0.01)
            asked = {name: body[name] for name in ("maxFiles", "pageToken") if name in body}
            reply = self.client.post(f"{self.path}/queries/{query}", json=asked, headers=headers)
        return self._answer(self._checked(reply), ends="maxFiles" in body or "includeRefreshToken" in body)

    def rows(self, answer: Answer) -> Rows:
        """The rows of a snapshot."""
        shape = answer.head.shape
        assert all(file.kind == "add" for file in answer.files), "§1.7: a snapshot has only files"
        return Rows.of(shape.columns, (row for file in answer.files for row in self.file_rows(shape, file)))

    def change_rows(self, answer: Answer) -> Rows:
        """The rows of the feed, with its three columns."""
        shape = answer.head.shape
        told = [row for commit in _commits(answer.files) for row in self._commit_rows(shape, commit)]
        return Rows.of((*shape.columns, *FEED_COLUMNS), told)

    def replica(self, first: Answer, windows: Iterable[Answer], shape: TableShape) -> Rows:
        """The rows that who keeps a copy has after some windows, all told under the last schema.

        A removed file takes its rows away by value: what an unseen OPTIMIZE wrote has an id the copy never saw.
        """
        empty = Rows.of(shape.columns, ())
        count: Counter[str] = Counter()
        for file in (file for answer in (first, *windows) for file in answer.files):
            rows = Rows.of(shape.columns, self.file_rows(shape, file)).rows
            count.update(rows) if file.kind == "add" else count.subtract(rows)
        assert not [row for row, times in count.items() if times < 0], (
            "§1.7: removed rows that were never there"
        )
        return replace(empty, rows=tuple(sorted(count.elements())))

    def file_rows(
        self, shape: TableShape, file: FileLine, *, only: np.ndarray | None = None
    ) -> list[list[Any]]:
        """The rows of one file less its deletion vector, or those of some positions."""
        deleted = self.positions(file) if only is None else None
        image = Image(self.content(file), file.partition_values, deleted, only)
        return file_rows(shape, image, with_change_type=file.kind == "cdc")

    def content(self, file: FileLine) -> bytes:
        """The bytes behind a URL, asked for as the clients do: whole by PY, the first file by range, too, by Spark."""
        if file.id not in self.fetched:
            ranged = not self.fetched
            self.fetched[file.id] = fetch(self.data, file.url, file.size, ranged=ranged)
        return self.fetched[file.id]

    def positions(self, file: FileLine) -> np.ndarray | None:
        """The deleted rows of a file."""
        if file.vector is None:
            return None
        if file.vector["storageType"] == "i":
            return inline_positions(file.vector)
        return stored_positions(file.vector, fetch(self.data, file.vector["pathOrInlineDv"]))

    def _commit_rows(self, shape: TableShape, files: list[FileLine]) -> Iterable[list[Any]]:
        """The changed rows of one commit. The same file twice means that only its vector changed."""
        moment = EPOCH + timedelta(milliseconds=files[0].timestamp or 0)
        removed = {file.id: file for file in files if file.kind == "remove"}
        added = {file.id: file for file in files if file.kind == "add"}
        for file in files:
            stamp = [file.version, moment]
            if file.kind == "cdc":
                yield from ([*row, *stamp] for row in self.file_rows(shape, file))
                continue
            other = (removed if file.kind == "add" else added).get(file.id)
            only = None if other is None else self._difference(file, other)
            kind = "insert" if file.kind == "add" else "delete"
            yield from ([*row, kind, *stamp] for row in self.file_rows(shape, file, only=only))

    def _difference(self, file: FileLine, other: FileLine) -> np.ndarray:
        """The rows that this one of two states of a file has and the other has not."""
        mine, theirs = (self.positions(one) for one in (file, other))
        none = np.empty(0, np.uint64)
        return np.setdiff1d(none if theirs is None else theirs, none if mine is None else mine)

    def _query(self, body: Mapping[str, Any]) -> Answer:
        reply = self._checked(self.client.post(f"{self.path}/query", json=body, headers=self.headers()))
        ends = any(
            body.get(name) for name in ("maxFiles", "pageToken", "includeRefreshToken", "refreshToken")
        )
        answer = self._answer(reply, ends=ends)
        whole = not body.keys() - {"version", "timestamp", "includeRefreshToken", "refreshToken"}
        if whole:
            _require_totals(answer)
        if "version" in body:
            assert answer.version == body["version"], f"§6.2: version {answer.version}, not {body['version']}"
        return answer

    def _changes(self, given: Mapping[str, Any]) -> Answer:
        # As PY spells them: True, not true (§0.11).
        params = {name: str(value) for name, value in given.items()}
        reply = self.client.get(f"{self.path}/changes", params=params, headers=self.headers())
        return self._answer(self._checked(reply), ends="maxFiles" in given)

    def headers(self, **more: str) -> dict[str, str]:
        """What this reader announces."""
        asked = {"responseformat": self.format} | more
        if self.format == "delta":
            asked["readerfeatures"] = ",".join(sorted(self.features))
        return {"delta-sharing-capabilities": ";".join(f"{key}={value}" for key, value in asked.items())}

    def _checked(self, answer: httpx.Response) -> httpx.Response:
        assert answer.status_code == 200, f"{answer.status_code} {answer.text}"
        kind = answer.headers["content-type"].replace(" ", "").lower()
        assert kind == "application/x-ndjson;charset=utf-8", f"§1.0: content type {kind}"
        told = answer.headers.get("delta-sharing-capabilities", "")
        assert f"responseformat={self.format}" in told.split(";"), f"§1.11: answered {told!r}"
        return answer

    def _answer(self, answer: httpx.Response, *, ends: bool) -> Answer:
        body = parse_body(answer.content, self.format, self.features)
        assert (body.end is not None) == ends, f"§0.1: endStreamAction {body.end}, asked for: {ends}"
        return Answer(_version_of(answer), body)


def joined(pages: list[Answer], max_files: int | None) -> Answer:
    """The pages of one answer as one, after the checks that Spark makes on them."""
    first = pages[0]
    for page in pages:
        assert page.head.raw == first.head.raw, "§0.10: head lines differ from page to page"
        assert page.version == first.version, "§0.10: the version differs from page to page"
        assert max_files is None or len(page.files) <= max_files, f"§1.7: {len(page.files)} files in a page"
    files = tuple(file for page in pages for file in page.files)
    keys = Counter((file.id, file.kind, file.version) for file in files)
    twice = [key for key, times in keys.items() if times > 1]
    assert not twice, f"§1.7: files on two pages: {twice}"
    later = tuple(line for page in pages for line in page.body.later)
    return Answer(first.version, Body(first.head, files, later, pages[-1].body.end), len(pages))


def fetch(client: httpx.Client, url: str, size: int | None = None, *, ranged: bool = True) -> bytes:
    """The bytes of a URL, whole and, if `ranged`, by a range, with what Spark and PY insist on."""
    whole = client.get(url)
    assert whole.status_code == 200, f"§10: {whole.status_code} for {url[:200]}"
    if size is not None:
        assert len(whole.content) == size, f"§6.2: {len(whole.content)} bytes, size says {size}"
    if not ranged:
        return whole.content
    last = len(whole.content) - 1
    part = client.get(url, headers={"Range": f"bytes=1-{last}"})
    assert part.status_code == 206, f"§0.6: {part.status_code} for a Range"
    assert part.headers["content-range"] == f"bytes 1-{last}/{last + 1}", part.headers["content-range"]
    assert part.content == whole.content[1:], "§10: the range has other bytes"
    return whole.content


def refusal(answer: httpx.Response, *statuses: int) -> Line:
    """The body of a refusal: JSON with a code and a message, of one of these statuses."""
    assert answer.status_code in statuses, f"{answer.status_code}, not {statuses}: {answer.text[:300]}"
    told = answer.json()
    assert set(told) == {"errorCode", "message"}, f"§1.0: {told}"
    assert told["message"], f"§4: a refusal without a word: {told}"
    return told


def _version_of(answer: httpx.Response) -> int:
    told = answer.headers.get("Delta-Table-Version")
    assert told is not None, "§0.7: Delta-Table-Version goes with every reply"
    return int(told)


def _pending(reply: httpx.Response) -> Line | None:
    assert reply.status_code == 200, f"§0.8: {reply.status_code} {reply.text}"
    _version_of(reply)
    first = json.loads(reply.content.split(b"\n", 1)[0])
    if "queryStatus" not in first:
        return None
    assert reply.content.count(b"\n") == 1, "§1.9: pending is one line"
    assert "asyncquery=true" in reply.headers["delta-sharing-capabilities"], "§1.9: asyncquery is echoed"
    assert first["queryStatus"]["status"] == "pending", f"§0.8: Spark does not see {first}"
    return first["queryStatus"]


def _require_totals(answer: Answer) -> None:
    told = (answer.head.outer["numFiles"], answer.head.outer["size"])
    found = (len(answer.files), sum(file.size for file in answer.files))
    assert told == found, f"§2.1: numFiles and size {told}, the lines have {found}"


def _require_window(file: FileLine, start: int, end: int | None) -> None:
    require_dated({"version": file.version, "timestamp": file.timestamp}, file.kind)
    assert file.version is not None
    assert start <= file.version, f"§1.7: version {file.version} before {start}"
    assert end is None or file.version <= end, f"§1.7: version {file.version} after {end}"


def _require_growing(files: Iterable[FileLine]) -> None:
    """One time for each version, and later ones for later versions."""
    times = sorted({(file.version or 0, file.timestamp or 0) for file in files})
    grows = all(v < w and t < u for (v, t), (w, u) in pairwise(times))
    assert grows, f"§1.7: commit times are strictly increasing: {times}"


def _require_later(lines: Iterable[Line], start: int, end: int | None, protocols: bool) -> None:
    for line in lines:
        [(kind, told)] = line.items()
        version = told.get("version")
        assert version is not None, f"§1.7: a later {kind} line without version"
        assert start < version, f"§1.7: a {kind} line of version {version} behind the head of {start}"
        assert end is None or version <= end, f"§1.7: a {kind} line of version {version} beyond {end}"
        assert kind == "metaData" or protocols, "§1.7: protocol lines only with includeHistoricalProtocol"


def _commits(files: Iterable[FileLine]) -> list[list[FileLine]]:
    commits: dict[int | None, list[FileLine]] = {}
    for file in files:
        commits.setdefault(file.version, []).append(file)
    return list(commits.values())
