"""The lines of an answer, held against `protocol.md` as strictly as the Spark connector does, then told in one form.

Every AssertionError begins with the rule that is broken. HTTP and rows are `protocol_reader.py`'s.
"""

import json
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import parse_qsl, urlsplit

from tests.builders.row_images import TableShape, physical_name

Format = Literal["parquet", "delta"]
Line = dict[str, Any]

SIGNATURE_KEYS = frozenset(
    ("x-amz-signature", "sp", "x-goog-credential", "x-oss-credential", "x-databricks-signature")
)
LOG_ONLY = frozenset({"v2Checkpoint", "vacuumProtocolCheck", "catalogManaged"})
PARQUET_TYPES = re.compile(
    r"string|long|integer|short|byte|float|double|boolean|binary|date|timestamp|decimal\(\d+,\d+\)"
)
KINDS: Mapping[Format, Mapping[str, str]] = {
    "parquet": {"file": "add", "add": "add", "remove": "remove", "cdf": "cdc"},
    "delta": {"add": "add", "remove": "remove", "cdc": "cdc"},
}
REQUIRED: Mapping[str, frozenset[str]] = {
    "add": frozenset({"path", "partitionValues", "size", "modificationTime", "dataChange"}),
    "remove": frozenset({"path", "partitionValues", "size", "deletionTimestamp", "dataChange"}),
    "cdc": frozenset({"path", "partitionValues", "size", "dataChange"}),
}
VECTOR_FIELDS = {"storageType", "pathOrInlineDv", "offset", "sizeInBytes", "cardinality"}
EXPIRES_AFTER_S = 15 * 60


@dataclass(frozen=True)
class FileLine:
    """One file of an answer, in either format."""

    kind: str
    """add, remove or cdc."""
    id: str
    url: str
    partition_values: Mapping[str, str | None]
    size: int
    stats: str | None
    version: int | None
    timestamp: int | None
    vector: Mapping[str, Any] | None
    vector_id: str | None
    action: Mapping[str, Any]
    """What the line wraps: the file object in parquet format, the action of the log in delta format."""

    @property
    def state(self) -> Line:
        """The file as the line describes it, without URLs, their expiry and the version that was asked for."""
        of_answer = {"url", "expirationTimestamp", "version", "timestamp"}
        state = {name: value for name, value in self.action.items() if name not in of_answer}
        if state.get("path") == self.url:
            del state["path"]
        if self.vector is not None and self.vector["storageType"] == "p":
            state["deletionVector"] = {**self.vector, "pathOrInlineDv": self.vector_id}
        return {"id": self.id, "kind": self.kind, **state}


@dataclass(frozen=True)
class Head:
    """The two lines that every answer begins with."""

    format: Format
    raw: tuple[bytes, bytes]
    protocol: Line
    """In delta format the inner `deltaProtocol`."""
    metadata: Line
    """In delta format the inner `deltaMetadata`."""
    outer: Line
    """What `metaData` wraps itself: `version`, `size`, `numFiles`."""
    protocol_version: int | None

    @property
    def shape(self) -> TableShape:
        """How to read files under this metadata."""
        return shape_of(self.format, self.metadata)


@dataclass(frozen=True)
class Body:
    """All lines of an answer."""

    head: Head
    files: tuple[FileLine, ...]
    later: tuple[Line, ...]
    """`metaData` and `protocol` lines behind the head."""
    end: Line | None
    """What `endStreamAction` holds; None when there is no such line."""


def shape_of(response_format: Format, metadata: Mapping[str, Any]) -> TableShape:
    """How to read files under this metadata."""
    mapping = metadata["configuration"].get("delta.columnMapping.mode", "none")
    is_delta = response_format == "delta"
    return TableShape(json.loads(metadata["schemaString"]), mapping if is_delta else "none", is_delta)


def parse_body(content: bytes, response_format: Format, features: frozenset[str]) -> Body:
    """The lines of an answer after all checks that need nothing but the answer itself."""
    assert content.endswith(b"\n"), "§1.0: the last line does not end"
    raw = content.split(b"\n")[:-1]
    lines = [_object(line) for line in raw]
    assert len(lines) >= 2, f"§2: {len(lines)} lines, the first two are protocol and metaData"
    head = _head(raw[:2], lines[:2], response_format, features)
    end = None
    if "endStreamAction" in lines[-1]:
        end = lines.pop()["endStreamAction"]
    rest = lines[2:]
    assert not any("endStreamAction" in line for line in rest), "§1.13: endStreamAction is the last line"
    later = tuple(line for line in rest if "metaData" in line or "protocol" in line)
    files = tuple(_file(line, head) for line in rest if "metaData" not in line and "protocol" not in line)
    body = Body(head, files, later, end)
    _require_unique(files)
    if end is not None:
        require_end(end)
    return body


def _object(line: bytes) -> Line:
    try:
        told = json.loads(line)
    except ValueError as error:
        raise AssertionError(f"§1.0: not JSON: {line[:200]!r}") from error
    assert isinstance(told, dict), f"§2: a line is an object: {line[:200]!r}"
    assert len(told) == 1, f"§2: a line holds exactly one wrapper, not {list(told)}"
    return told


def _head(raw: Sequence[bytes], lines: Sequence[Line], fmt: Format, features: frozenset[str]) -> Head:
    assert "protocol" in lines[0], f"§2: line 1 is protocol, not {list(lines[0])}"
    assert "metaData" in lines[1], f"§2: line 2 is metaData, not {list(lines[1])}"
    outer_protocol, outer = lines[0]["protocol"], lines[1]["metaData"]
    if fmt == "parquet":
        assert outer_protocol == {"minReaderVersion": 1}, f"§2.1: the protocol is always 1: {outer_protocol}"
        protocol, metadata = outer_protocol, outer
    else:
        assert set(outer_protocol) <= {"deltaProtocol", "version"}, f"§2.2: {list(outer_protocol)}"
        protocol, metadata = outer_protocol["deltaProtocol"], outer["deltaMetadata"]
        require_delta_protocol(protocol, features)
    for field in ("size", "numFiles"):
        assert isinstance(outer.get(field), int), (
            f"§0.4: metaData.{field} is always there: {outer.get(field)!r}"
        )
    require_metadata(fmt, metadata)
    return Head(fmt, (raw[0], raw[1]), protocol, metadata, outer, outer_protocol.get("version"))


def require_delta_protocol(protocol: Mapping[str, Any], features: frozenset[str]) -> None:
    """What Spark and the kernel want of a `deltaProtocol`."""
    reader, writer = protocol["minReaderVersion"], protocol["minWriterVersion"]
    readers, writers = protocol.get("readerFeatures"), protocol.get("writerFeatures")
    assert (readers is not None) == (reader == 3), f"§2.4: readerFeatures with reader version {reader}"
    assert (writers is not None) == (writer == 7), f"§2.4: writerFeatures with writer version {writer}"
    named = frozenset(readers or ())
    assert not named & LOG_ONLY, f"§2.4: features that only log readers need: {sorted(named & LOG_ONLY)}"
    assert named <= frozenset(writers or ()), f"§2.4: readerFeatures beside writerFeatures: {sorted(named)}"
    announced = {feature.lower() for feature in features}
    missing = {feature for feature in named if feature.lower() not in announced}
    assert not missing, f"§2.5: features the client never announced: {sorted(missing)}"


def require_metadata(fmt: Format, metadata: Mapping[str, Any]) -> None:
    """The fields of a metadata object and the types of its schema."""
    for field in ("id", "format", "schemaString", "partitionColumns", "configuration"):
        assert metadata.get(field) is not None, f"§2.1/§2.2: metaData.{field} is required"
    assert metadata["format"]["provider"] == "parquet", f"§2.1: the provider is {metadata['format']}"
    schema = json.loads(metadata["schemaString"])
    names = {field["name"] for field in schema["fields"]}
    strays = set(metadata["partitionColumns"]) - names
    assert not strays, f"§2.1: partitionColumns that are no columns: {sorted(strays)}"
    if fmt == "parquet":
        _require_parquet_types(schema)
        keys = set(metadata["configuration"])
        assert keys <= {"enableChangeDataFeed"}, f"§2.1: configuration of a parquet answer: {sorted(keys)}"


def _require_parquet_types(kind: Any) -> None:
    if isinstance(kind, str):
        assert PARQUET_TYPES.fullmatch(kind), f"§2.1: parquet format has no type {kind}"
        return
    for field in kind.get("fields", ()):
        strange = {key for key in field["metadata"] if key.startswith("delta.")}
        assert not strange, (
            f"§2.1: metadata of column {field['name']} that needs delta format: {sorted(strange)}"
        )
        _require_parquet_types(field["type"])
    for inner in ("elementType", "keyType", "valueType"):
        if inner in kind:
            _require_parquet_types(kind[inner])


def _file(line: Line, head: Head) -> FileLine:
    [(wrapper, outer)] = line.items()
    if head.format == "parquet":
        assert wrapper in KINDS["parquet"], f"§2.1: an unknown line {wrapper!r}"
        kind, action, path = KINDS["parquet"][wrapper], outer, outer["url"]
        if wrapper in ("cdf", "remove"):
            assert "stats" not in outer, f"§2.1: a {wrapper} line has no stats"
        if wrapper != "file":
            require_dated(outer, wrapper)
    else:
        assert wrapper == "file", f"§2.2: an unknown line {wrapper!r}"
        [(kind, action)] = outer["deltaSingleAction"].items()
        assert kind in KINDS["delta"], f"§2.2: an unknown action {kind!r}"
        missing = REQUIRED[kind] - set(action)
        assert not missing, f"§2.2: {kind} lacks {sorted(missing)}"
        path = action["path"]
        _require_row_ids(head, kind, action)
    _require_url(path)
    _require_partitions(head, action["partitionValues"])
    assert isinstance(outer.get("id"), str), f"§2: a file without id: {outer}"
    assert outer["id"], "§2: an empty file id"
    expires = outer.get("expirationTimestamp")
    if expires is not None:
        assert expires / 1000 - time.time() > EXPIRES_AFTER_S, "§2.7: a URL that Spark would not believe"
    vector = action.get("deletionVector")
    if vector is not None:
        _require_vector(vector, outer.get("deletionVectorFileId"))
    return FileLine(
        kind=kind,
        id=outer["id"],
        url=path,
        partition_values=action["partitionValues"],
        size=action["size"],
        stats=action.get("stats"),
        version=outer.get("version"),
        timestamp=outer.get("timestamp"),
        vector=vector,
        vector_id=outer.get("deletionVectorFileId"),
        action=action,
    )


def require_dated(outer: Mapping[str, Any], kind: str) -> None:
    """Files of streams and of the feed say of which commit they are."""
    for field in ("version", "timestamp"):
        assert isinstance(outer.get(field), int), f"§2.1/§6.2: a {kind} line without {field}"


def _require_url(url: str) -> None:
    parts = urlsplit(url)
    assert parts.scheme in ("http", "https"), f"§0.3: only http(s) works everywhere: {url[:80]}"
    keys = {key.lower() for key, _ in parse_qsl(parts.query)}
    assert keys & SIGNATURE_KEYS, f"§0.2: no key in {sorted(keys)} by which PY knows a signed URL"


def _require_partitions(head: Head, values: Mapping[str, str | None]) -> None:
    shape, names = head.shape, set(head.metadata["partitionColumns"])
    fields = [field for field in shape.schema["fields"] if field["name"] in names]
    mapped = shape.physical_partitions and shape.mapping != "none"
    wanted = {physical_name(field) if mapped else field["name"] for field in fields}
    assert set(values) == wanted, f"§2.1/§2.2: partition values {sorted(values)}, not {sorted(wanted)}"
    strange = [value for value in values.values() if not isinstance(value, str | None)]
    assert not strange, f"§2.1: partition values are texts, not {strange}"


def _require_row_ids(head: Head, kind: str, action: Mapping[str, Any]) -> None:
    tracks = head.metadata["configuration"].get("delta.enableRowTracking") == "true"
    if tracks and kind in ("add", "remove"):
        for field in ("baseRowId", "defaultRowCommitVersion"):
            assert isinstance(action.get(field), int), f"§0.18: {kind} without {field}"


def _require_vector(vector: Mapping[str, Any], vector_id: str | None) -> None:
    kind = vector["storageType"]
    assert kind in ("p", "i"), f"§0.5: Spark knows no vector of type {kind!r}"
    assert set(vector) <= VECTOR_FIELDS, f"§2.3: fields of a vector: {sorted(vector)}"
    if kind == "p":
        assert vector_id, "§0.5: deletionVectorFileId goes with every vector that is not inline"
        _require_url(vector["pathOrInlineDv"])
    else:
        assert vector_id is None, "§2.3: deletionVectorFileId is for vectors in files"


def _require_unique(files: Iterable[FileLine]) -> None:
    seen: set[tuple[str, str, int | None]] = set()
    vectors: dict[str, str] = {}
    for file in files:
        key = (file.id, file.kind, file.version)
        assert key not in seen, f"§2.6: id {file.id} twice as {file.kind}"
        seen.add(key)
        if file.vector_id is not None:
            told = json.dumps({**file.vector, "pathOrInlineDv": urlsplit(file.vector["pathOrInlineDv"]).path})
            assert vectors.setdefault(file.vector_id, told) == told, "§2.3: one id for two vectors"


def require_end(end: Mapping[str, Any]) -> None:
    """What an `endStreamAction` may hold; an error in it is a failed answer."""
    known = {
        "refreshToken",
        "nextPageToken",
        "minUrlExpirationTimestamp",
        "errorMessage",
        "httpStatusErrorCode",
    }
    assert set(end) <= known, f"§1.13: {sorted(end)}"
    assert "errorMessage" not in end, f"§1.13: the answer broke off: {end}"
