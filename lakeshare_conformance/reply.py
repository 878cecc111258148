"""The answer to a table read: its lines, and its file actions in the same words for both response formats."""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from functools import cached_property
from typing import Any

from lakeshare_conformance.case import (
    COUNT,
    DELTA,
    NAME,
    PARQUET,
    URL,
    VALUES,
    ExpectationFailed,
    Kind,
    expect,
)
from lakeshare_conformance.client import Response

HEAD = ("protocol", "metaData")
END = "endStreamAction"
PARQUET_ACTIONS = {"file": "add", "add": "add", "remove": "remove", "cdf": "cdc"}
DELTA_ACTIONS = ("add", "remove", "cdc")


@dataclass(frozen=True)
class Line:
    """One line: its bytes, its one key, and what stands under it."""

    where: str
    raw: bytes
    kind: str
    value: dict[str, Any]


@dataclass(frozen=True)
class Action:
    """A file in the answer. `outer` stands under the line's key, `inner` is where its path and size stand."""

    where: str
    format: str
    kind: str
    outer: dict[str, Any]
    inner: dict[str, Any]

    @property
    def id(self) -> str:
        return str(self._wanted(self.outer, "id", NAME))

    @property
    def key(self) -> tuple[str, str]:
        """What tells this action from others: the file, and its deletion vector."""
        return self.id, str(self.outer.get("deletionVectorFileId") or self.vector or "")

    @property
    def url(self) -> str:
        return str(self._wanted(self.inner, "url" if self.format == PARQUET else "path", URL))

    @property
    def size_bytes(self) -> int:
        return int(self._wanted(self.inner, "size", COUNT))

    @property
    def partition_values(self) -> dict[str, str | None]:
        values: dict[str, str | None] = self._wanted(self.inner, "partitionValues", VALUES)
        return values

    @property
    def version(self) -> int:
        return int(self._wanted(self.outer, "version", COUNT))

    @property
    def timestamp_ms(self) -> int:
        return int(self._wanted(self.outer, "timestamp", COUNT))

    @property
    def expires_ms(self) -> int | None:
        if self.outer.get("expirationTimestamp") is None:
            return None
        return int(self._wanted(self.outer, "expirationTimestamp", COUNT))

    @property
    def vector(self) -> dict[str, Any] | None:
        """The deletion vector, as the log describes it."""
        found = self.inner.get("deletionVector")
        return found if isinstance(found, dict) else None

    @cached_property
    def stats(self) -> dict[str, Any] | None:
        """The statistics.

        Raises:
            Broken: they are not a text that holds a JSON object.
        """
        text = self.inner.get("stats")
        if text is None:
            return None
        try:
            found = json.loads(text)
        except (TypeError, ValueError):
            found = None
        if not isinstance(found, dict):
            raise ExpectationFailed(f"{self.where}, field stats", "a text that holds a JSON object", text)
        return found

    @property
    def rows(self) -> int | None:
        """How many rows are left after the deletion vector, if the statistics say."""
        count = (self.stats or {}).get("numRecords")
        if not isinstance(count, int):
            return None
        return count - int((self.vector or {}).get("cardinality", 0))

    def _wanted(self, fields: dict[str, Any], name: str, kind: Kind) -> Any:
        value = fields.get(name)
        expect(kind.holds(value), f"{self.where}, field {name}", kind.words, value)
        return value


class Reply:
    """The lines of a 200."""

    def __init__(self, response: Response) -> None:
        """Take the answer apart.

        Raises:
            Broken: it is not a 200 of lines that each hold a JSON object with one key.
        """
        self.response = response.expect_status(200)
        self.where = response.request
        self.lines = tuple(_lines(response))

    @property
    def version(self) -> int:
        return self.response.version

    @property
    def format(self) -> str:
        """The format the header tells; none means parquet."""
        return self.response.capabilities.get("responseformat") or PARQUET

    @property
    def head(self) -> tuple[Line, Line]:
        """The first two lines.

        Raises:
            Broken: they are not protocol and metaData.
        """
        kinds = [line.kind for line in self.lines[:2]]
        expect(kinds == list(HEAD), self.where, "the first lines to be protocol, then metaData", kinds)
        return self.lines[0], self.lines[1]

    @property
    def protocol(self) -> dict[str, Any]:
        """What the protocol line says; in delta format, what Delta's protocol action says."""
        return _get_inner(self.head[0], "deltaProtocol") if self.format == DELTA else self.head[0].value

    @property
    def metadata(self) -> dict[str, Any]:
        """What the metaData line says; in delta format, what Delta's metaData action says."""
        return _get_inner(self.head[1], "deltaMetadata") if self.format == DELTA else self.head[1].value

    @property
    def later(self) -> tuple[Line, ...]:
        """The lines after the head."""
        return self.lines[2:]

    @cached_property
    def actions(self) -> tuple[Action, ...]:
        """The file actions, in their order."""
        return tuple(_actions(self.lines, self.format))

    @property
    def ids(self) -> frozenset[str]:
        return frozenset(action.id for action in self.actions)

    @property
    def end(self) -> dict[str, Any] | None:
        """What the closing line says, if there is one."""
        return self.lines[-1].value if self.lines and self.lines[-1].kind == END else None

    @property
    def configuration(self) -> dict[str, str]:
        found = self.metadata.get("configuration")
        return found if isinstance(found, dict) else {}

    @property
    def is_mapped(self) -> bool:
        """Whether files have the columns under other names than the table has."""
        return self.format == DELTA and self.configuration.get("delta.columnMapping.mode", "none") != "none"

    @property
    def partition_columns(self) -> list[str]:
        found = self.metadata.get("partitionColumns")
        return found if isinstance(found, list) else []

    @cached_property
    def fields(self) -> list[dict[str, Any]]:
        """The table's columns.

        Raises:
            Broken: schemaString is no JSON of a struct.
        """
        text = self.metadata.get("schemaString")
        try:
            fields = json.loads(str(text))["fields"]
            return [dict(field) for field in fields if field["name"] is not None]
        except (ValueError, KeyError, TypeError) as error:
            raise ExpectationFailed(
                f"{self.where}, schemaString", "JSON of a struct type with fields", text
            ) from error


def _lines(response: Response) -> Iterator[Line]:
    for number, raw in enumerate(response.body.rstrip(b"\n").split(b"\n"), 1):
        where = f"{response.request}, line {number}"
        try:
            value = json.loads(raw)
        except ValueError as error:
            raise ExpectationFailed(where, "a JSON object", raw[:200].decode("utf-8", "replace")) from error
        if not isinstance(value, dict) or len(value) != 1:
            keys = list(value) if isinstance(value, dict) else value
            raise ExpectationFailed(where, "an object with one key", keys)
        [(kind, inner)] = value.items()
        expect(isinstance(inner, dict), where, f"an object under {kind}", inner)
        yield Line(where, raw, kind, inner)


def _actions(lines: tuple[Line, ...], format: str) -> Iterator[Action]:
    for line in lines:
        if format == PARQUET and line.kind in PARQUET_ACTIONS:
            yield Action(line.where, format, PARQUET_ACTIONS[line.kind], line.value, line.value)
        if format == DELTA and line.kind == "file":
            single = _get_inner(line, "deltaSingleAction")
            kinds = list(single)
            expect(
                len(kinds) == 1 and kinds[0] in DELTA_ACTIONS and isinstance(single[kinds[0]], dict),
                line.where,
                "one of add, remove, cdc under deltaSingleAction",
                single,
            )
            yield Action(line.where, format, kinds[0], line.value, single[kinds[0]])


def _get_inner(line: Line, key: str) -> dict[str, Any]:
    inner = line.value.get(key)
    if not isinstance(inner, dict):
        raise ExpectationFailed(line.where, f"an object {key} under {line.kind}", line.value)
    return inner


INTEGERS = ("byte", "short", "integer", "long")
FLOATS = ("float", "double")
_TIMESTAMP = re.compile(r"\d{4,}-\d\d-\d\d([ T]\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)?)?")


def is_partition_value(value: str | None, kind: object) -> bool:
    """Whether a text is a value of the type, as partition values are written. Null and empty are null."""
    if not value or not isinstance(kind, str):
        return True
    if kind.startswith("decimal"):
        return _is_readable(Decimal, value)
    check = _CHECKS.get(kind)
    return check is None or check(value)


def to_value(text: str | None, kind: str) -> object:
    """A partition value as Python has it.

    Raises:
        ValueError: it is not of the type.
    """
    if text is None or text == "":
        return None
    if kind in INTEGERS:
        return int(text)
    if kind in FLOATS:
        return float(text)
    if kind == "boolean":
        return text == "true"
    if kind == "date":
        return date.fromisoformat(text)
    if kind in ("timestamp", "timestamp_ntz"):
        moment = datetime.fromisoformat(text)
        return moment if moment.tzinfo or kind == "timestamp_ntz" else moment.replace(tzinfo=UTC)
    return text


def to_literal(value: object) -> str:
    """A value as the text of a predicate's literal; times are cut to milliseconds, as Spark cuts them."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        moment = value.astimezone(UTC) if value.tzinfo else value
        return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"
    if isinstance(value, date):
        return value.isoformat()
    return repr(value) if isinstance(value, float) else str(value)


def to_compared(value: object) -> object:
    """The value that a literal of it stands for."""
    if isinstance(value, datetime):
        return value - timedelta(microseconds=value.microsecond % 1000)
    return value


def is_ordinary(value: object) -> bool:
    """Whether a value has one meaning to everybody: no NaN, and no text that needs escaping."""
    if isinstance(value, float):
        return math.isfinite(value)
    return not isinstance(value, str) or (value.isprintable() and not set(value) & set("'\"\\%_`"))


def _is_readable(read: Callable[[str], object], text: str) -> bool:
    try:
        read(text)
    except (ValueError, InvalidOperation):
        return False
    return True


_CHECKS: dict[str, Callable[[str], bool]] = {
    **dict.fromkeys(INTEGERS, lambda text: re.fullmatch(r"[+-]?\d+", text) is not None),
    **dict.fromkeys(FLOATS, lambda text: _is_readable(float, text)),
    "boolean": lambda text: text in ("true", "false"),
    "date": lambda text: re.fullmatch(r"[+-]?\d{4,}-\d\d-\d\d", text) is not None,
    "timestamp": lambda text: _TIMESTAMP.fullmatch(text) is not None,
    "timestamp_ntz": lambda text: _TIMESTAMP.fullmatch(text) is not None,
}


def counted(actions: Iterable[Action]) -> Counter[tuple[str, tuple[str, str], int]]:
    """Files with their kinds and versions, whatever their order."""
    return Counter((action.kind, action.key, action.version) for action in actions)


def iso(at_ms: int) -> str:
    """A time in ISO-8601, with milliseconds."""
    moment = datetime.fromtimestamp(at_ms // 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{at_ms % 1000:03d}Z"
