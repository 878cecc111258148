"""Random Iceberg tables as their recipients read them: snapshots, versions, changes and filters, through every API.

What has to be found is known from how a table was made. A function of `APIS` returns how often each thing came out
(rows, a refusal by its code, a limit of a client's own), and raises AssertionError for anything else.
"""

import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any

import delta_sharing
import httpx
import pyarrow as pa
import requests
from pydantic import ValidationError
from pyiceberg.exceptions import BadRequestError, RESTError
from pyiceberg.table import StaticTable

from tests.builders.canonical import Kind, Rows, same_frame, same_rows
from tests.builders.hostile.served import quietly
from tests.builders.iceberg_filters import a_filter, as_evaluated, expression, matches
from tests.builders.iceberg_projection import ProjectedTable
from tests.builders.iceberg_rest import door, rest_catalog
from tests.builders.protocol_lines import shape_of
from tests.builders.protocol_reader import FEED_COLUMNS, Answer, ProtocolReader
from tests.builders.pruning.casts import Client, float32
from tests.builders.pruning.questions import a_question, as_json, as_sql
from tests.builders.pruning.tables import File, Table
from tests.builders.pruning.truth import Column, truth
from tests.builders.row_images import TableShape, physical_name
from tests.builders.sharing import Running

ZONES = (0, -480, 345, 840, "America/New_York")
QUESTIONS, FILTERS = 3, 2
# A refusal's code is the last of its message.
CODE = re.compile(r"\[([A-Z_]+)\]$")
OWN_LIMIT = "limit of the client"
Outcome = Counter[str]


@dataclass(frozen=True)
class Reading:
    """A running server, and the clients of one recipient."""

    server: Running
    token: str
    client: httpx.Client
    data: httpx.Client

    @cached_property
    def profile(self) -> Path:
        """The recipient's profile file."""
        return self.server.profile(self.token)

    @cached_property
    def catalogs(self) -> Mapping[str, Any]:
        """PyIceberg's clients by where they plan their scans."""
        planned_by_server = rest_catalog(self.server, self.token, **{"scan-planning-mode": "server"})
        return {"client": rest_catalog(self.server, self.token), "server": planned_by_server}

    @cached_property
    def rest(self) -> httpx.Client:
        """A plain client of the Iceberg REST API."""
        return door(self.server, self.token)


@dataclass(frozen=True)
class SharedTable:
    """A random table, its name in the schema, and the draws of predicates on it."""

    name: str
    source: ProjectedTable
    is_followed: bool
    """Whether each of its files came in a version of its own."""
    random: Random
    seen: Outcome = field(default_factory=Counter)
    """Files that no row of matches, and those of them that were left out."""
    fetched: dict[str, bytes] = field(default_factory=dict, repr=False)
    """The bytes of data files by their ids in responses."""


def reader_of(reading: Reading, shared: SharedTable, fmt: Any) -> ProtocolReader:
    """A reader of the table in one format, which fetches no file again."""
    return ProtocolReader(
        reading.client, f"flights.lake.{shared.name}", fmt, reading.data, fetched=shared.fetched
    )


def refusal_of(reply: httpx.Response) -> str | None:
    """The code of a refusal, None of an answer."""
    return None if reply.status_code == 200 else code_of(reply.status_code, reply.text)


def code_of(status: int, text: str) -> str:
    """The code in the message of a refusal."""
    assert status == 400, f"{status}: {text}"
    found = CODE.search(json.loads(text)["message"])
    assert found is not None, f"a refusal without a code: {text}"
    return found[1]


def by_protocol(reading: Reading, shared: SharedTable, fmt: Any) -> Outcome:
    reader = reader_of(reading, shared, fmt)
    refused = refusal_of(reading.client.post(f"{reader.path}/query", json={}, headers=reader.headers()))
    if refused is not None:
        return Counter([f"refused {refused}"])
    answer, expected = reader.snapshot(), shared.source.expected()
    same_rows(reader.rows(answer), expected)
    rows = {file.id: reader.file_rows(answer.head.shape, file) for file in answer.files}
    for file in answer.files:
        require_true_counts(answer, file, rows[file.id])
    for is_json in (False, True):
        for _ in range(QUESTIONS):
            ask(reader, shared, answer, rows, is_json=is_json)
    found: Outcome = Counter(["rows"])
    if shared.is_followed:
        found += read_history(reading, shared, reader)
    return found


def require_true_counts(answer: Answer, file: Any, rows: Sequence[Sequence[Any]]) -> None:
    """The counts of nulls in a file's statistics are those of the rows that are read of it."""
    counts: Mapping[str, int] = json.loads(file.stats or "{}").get("nullCount", {})
    fields = answer.head.shape.schema["fields"]
    physical = {physical_name(column): place for place, column in enumerate(fields)}
    logical = {column["name"]: place for place, column in enumerate(fields)}
    for column, count in counts.items():
        place = physical.get(column, logical.get(column))
        assert place is not None, f"nullCount of {column}, which is no column"
        assert count == sum(row[place] is None for row in rows), f"nullCount of {column}: {count}"


def ask(
    reader: ProtocolReader,
    shared: SharedTable,
    answer: Answer,
    rows: Mapping[str, Sequence[Sequence[Any]]],
    *,
    is_json: bool,
) -> tuple[str, set[str]]:
    """Query with a random predicate: no file with a row that matches it, for any client, is left out."""
    random, columns = shared.random, answer.head.shape.columns
    table = pruned_table(columns, rows.values())
    question = a_question(random, table, is_json=is_json)
    text = json.dumps(as_json(question, random)) if is_json else as_sql(question, random)
    some = reader.snapshot(**({"jsonPredicateHints": text} if is_json else {"predicateHints": [text]}))
    kept = set(some.ids)
    assert kept <= rows.keys(), f"{text}: files that are not the table's"
    client = Client(random.choice(ZONES), random.random() < 0.7, random.random() < 0.5)
    for name, file in zip(rows, table.files, strict=True):
        wanted = [row for row in file.rows if truth(question, row, client) is True]
        assert name in kept or not wanted, f"{text}: rows are lost for {client}: {wanted}"
        shared.seen["files without a match"] += not wanted
        shared.seen["files left out"] += name not in kept
    return text, kept


def pruned_table(columns: Iterable[tuple[str, Kind]], files: Iterable[Sequence[Sequence[Any]]]) -> Table:
    """Columns and rows as the judge of predicates has them."""
    columns = [Column((name,), str(kind)) for name, kind in columns]
    made, numbers = [], itertools.count()
    for file in files:
        rows = []
        for row in file:
            values = {
                column.path: as_compared(value, column.type)
                for column, value in zip(columns, row, strict=True)
            }
            rows.append({**values, ("row",): next(numbers)})
        made.append(File(tuple(rows), tuple(rows), {}))
    return Table(tuple(columns), tuple(made))


def as_compared(value: Any, kind: str) -> Any:
    """A plain value as the judge of predicates has it: days, microseconds, single floats."""
    if isinstance(value, date):
        return as_evaluated(value)
    return float32(value) if kind == "float" and value is not None else value


def read_history(reading: Reading, shared: SharedTable, reader: ProtocolReader) -> Outcome:
    """An earlier version, the changes of some versions as a stream reads them, and as the change data feed has them."""
    random, count = shared.random, len(shared.source.files)
    first, last = sorted(random.choices(range(count), k=2))
    found: Outcome = Counter()
    query, headers = f"{reader.path}/query", reader.headers()
    refused = refusal_of(reading.client.post(query, json={"version": first}, headers=headers))
    found[f"version: {'rows' if refused is None else f'refused {refused}'}"] += 1
    if refused is None:
        is_newest = first == count - 1
        expected = shared.source.expected(None if is_newest else first + 1)
        same_rows(reader.rows(reader.snapshot(version=first)), expected, f"version {first}")
    window = {"startingVersion": first, "endingVersion": last}
    refused = refusal_of(reading.client.post(query, json=window, headers=headers))
    found[f"window: {'rows' if refused is None else f'refused {refused}'}"] += 1
    if refused is None:
        answer = reader.window(first, last)
        rows = [
            row for file in answer.files for row in reader.file_rows(shape_at(answer, file.version), file)
        ]
        same_rows(Rows.of(answer.head.shape.columns, rows), changed(shared, answer, first, last), "window")
    refused = refusal_of(reading.client.get(f"{reader.path}/changes", params=window, headers=headers))
    found[f"changes: {'rows' if refused is None else f'refused {refused}'}"] += 1
    if refused is None:
        answer = reader.changes(first, last)
        expected = changed(shared, answer, first, last, is_feed=True)
        same_rows(reader.change_rows(answer).without("_commit_timestamp"), expected, "changes")
    return found


def shape_at(answer: Answer, version: int | None) -> TableShape:
    """How to read the files of a version in a window: by the last metadata up to there."""
    shape, fmt = answer.head.shape, answer.head.format
    for line in answer.body.later:
        metadata = line.get("metaData")
        if metadata is not None and metadata["version"] <= (version or 0):
            shape = shape_of(fmt, metadata["deltaMetadata"] if fmt == "delta" else metadata)
    return shape


def changed(shared: SharedTable, answer: Answer, first: int, last: int, *, is_feed: bool = False) -> Rows:
    """The rows that came in some versions, under the names that the answer has for the columns."""
    ids = [column.field_id for column in shared.source.table.schema().fields]
    columns = [*answer.head.shape.columns, *(FEED_COLUMNS[:2] if is_feed else ())]
    rows = [
        [*(row.get(field_id) for field_id in ids), *(("insert", version) if is_feed else ())]
        for version in range(first, last + 1)
        for row in shared.source.files[version].rows
    ]
    return Rows.of(columns, rows)


def by_python(reading: Reading, shared: SharedTable, *, use_delta_format: bool) -> Outcome:
    """The official client, also with a predicate: it returns the rows of all files that it gets."""
    expected, url = shared.source.expected(), f"{reading.profile}#flights.lake.{shared.name}"
    reader = reader_of(reading, shared, "delta" if use_delta_format else "parquet")
    try:
        frame = quietly(delta_sharing.load_as_pandas, url, use_delta_format=use_delta_format)
    except requests.HTTPError as error:
        return Counter([f"refused {code_of(error.response.status_code, error.response.text)}"])
    same_frame(frame[expected.names], expected)
    if shared.random.random() < 0.5:
        return Counter(["rows"])
    answer = reader.snapshot()
    rows = {file.id: reader.file_rows(answer.head.shape, file) for file in answer.files}
    text, kept = ask(reader, shared, answer, rows, is_json=True)
    some = Rows.of(answer.head.shape.columns, (row for name in kept for row in rows[name]))
    frame = quietly(
        delta_sharing.load_as_pandas, url, jsonPredicateHints=text, use_delta_format=use_delta_format
    )
    same_frame(frame[expected.names], some, text)
    return Counter(["rows", "with a predicate: rows"])


def by_rest(reading: Reading, shared: SharedTable, planned_by: str) -> Outcome:
    """PyIceberg, whole and by filters; it drops the rows that a filter does not match."""
    table, schema = shared.source, shared.source.table.schema()
    loaded = reading.catalogs[planned_by].load_table(f"lake.{shared.name}")
    without_server = StaticTable.from_metadata(table.state().metadata_location)
    columns = {column.name: str(column.field_type) for column in schema.fields}
    rows = [list(row.values()) for row in table.rows(schema)]
    evaluated = [[as_evaluated(value) for value in row] for row in rows]
    kinds = table.expected().columns
    try:
        found = Counter([scanned(loaded, without_server, table.expected())])
    except BadRequestError as refusal:
        if planned_by != "server" or "set scan-planning-mode to client" not in str(refusal):
            raise AssertionError(str(refusal)) from refusal
        return Counter(["refused, planned by the client instead"])
    for _ in range(FILTERS):
        condition = a_filter(shared.random, columns, evaluated, shared.random.choice((0, 1, 1, 2)))
        wanted = matches(schema, condition, evaluated)
        some = Rows.of(kinds, (row for row, is_wanted in zip(rows, wanted, strict=True) if is_wanted))
        found[f"filter: {scanned(loaded, without_server, some, condition)}"] += 1
        if planned_by == "server":
            require_planned(reading, shared, condition)
    return found


def scanned(loaded: Any, without_server: Any, expected: Rows, condition: Any = True) -> str:
    """Whether a scan finds the rows, or else what the client makes of the same files without a server.

    PyIceberg 0.12 looks for required columns in files before it looks at partition values, makes single floats of
    these, compares null partition values, and drops nulls that a negated comparison has to find.
    """
    found = outcome_of(loaded, condition)
    if isinstance(found, RESTError):
        raise found
    if isinstance(found, ValidationError) and "data-file.partition" in str(found):
        # PyIceberg 0.12 takes no plan of a server that has null as a partition value.
        return OWN_LIMIT
    try:
        same_rows(rows_of(found, expected), expected, str(condition))
    except AssertionError:
        direct = outcome_of(without_server, condition)
        if isinstance(found, Exception):
            # Plans of the client and of the server open different files.
            if type(found) in (type(direct), type(outcome_of(without_server, True))):
                return OWN_LIMIT
            raise AssertionError(f"{condition}: only through the server: {found!r}") from found
        assert not isinstance(direct, Exception), f"{condition}: only without a server: {direct!r}"
        same_rows(rows_of(found, expected), rows_of(direct, expected), str(condition))
        return OWN_LIMIT
    return "rows"


def outcome_of(table: Any, condition: Any) -> Any:
    """The rows of a scan, or why PyIceberg reads none."""
    try:
        return table.scan(row_filter=expression(condition)).to_arrow()
    # Whatever PyIceberg and Arrow raise has to be what they raise of the same table without a server.
    except Exception as error:
        return error


def require_planned(reading: Reading, shared: SharedTable, condition: Any) -> None:
    """Every file with a row that matches is in the server's plan."""
    path, schema = f"/v1/shares/flights/namespaces/lake/tables/{shared.name}", shared.source.table.schema()
    reply = reading.rest.post(f"{path}/plan", json={"filter": condition})
    planned: set[str] = set()
    while True:
        assert reply.status_code == 200, reply.text
        planned |= {task["data-file"]["file-path"] for task in reply.json().get("file-scan-tasks", ())}
        if not (tokens := reply.json().get("plan-tasks")):
            break
        reply = reading.rest.post(f"{path}/tasks", json={"plan-task": tokens[0]})
    for file in shared.source.files:
        rows = [[as_evaluated(row.get(column.field_id)) for column in schema.fields] for row in file.rows]
        has_match = any(matches(schema, condition, rows))
        assert file.location in planned or not has_match, f"{condition}: {file} is not planned"
        shared.seen["planned files without a match"] += not has_match
        shared.seen["planned files left out"] += file.location not in planned


def rows_of(found: pa.Table | Exception, expected: Rows) -> Rows:
    assert not isinstance(found, Exception), repr(found)
    lists = [found.column(column).to_pylist() for column in expected.names]
    return Rows.of(expected.columns, zip(*lists, strict=True))


APIS: Mapping[str, Callable[[Reading, SharedTable], Outcome]] = {
    "parquet": lambda reading, shared: by_protocol(reading, shared, "parquet"),
    "delta": lambda reading, shared: by_protocol(reading, shared, "delta"),
    "python parquet": lambda reading, shared: by_python(reading, shared, use_delta_format=False),
    "python delta": lambda reading, shared: by_python(reading, shared, use_delta_format=True),
    "Iceberg REST": lambda reading, shared: by_rest(reading, shared, "client"),
    "Iceberg REST, planned by the server": lambda reading, shared: by_rest(reading, shared, "server"),
}
