"""The recipient's portal: a page without anything of a recipient's, and what it asks for with a profile's token."""

import asyncio
import json
import posixpath
import re
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from datetime import UTC, datetime, timedelta
from itertools import islice, zip_longest
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote, unquote

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import RedirectResponse

from lakeshare_server.access.allowed_locations import local_folders
from lakeshare_server.access.table_access import TableView
from lakeshare_server.catalog.sharing import states
from lakeshare_server.errors import LakeshareError, TableFilesMissing
from lakeshare_server.pages.rendering import NO_STORE, STATIC_PATH, page, static_file, table_code
from lakeshare_server.protocol.lines import HEADER
from lakeshare_server.protocol.requests import matches, optional_number, query_of
from lakeshare_server.routes.context import (
    Asked,
    AskedDep,
    AskedTable,
    NoteDep,
    PartsDep,
    TableDep,
    in_table_pool,
)
from lakeshare_server.routes.files import opened_file
from lakeshare_server.routes.queries import answer_query
from lakeshare_server.routes.responses import LinesResponse, error_response, json_response
from lakeshare_server.routes.tables import answer_metadata
from lakeshare_server.settings import PORTAL_PATH, ServerSettings
from lakeshare_server.storage import Signers, SigningSession, Stores
from lakeshare_server.storage.locations import LOCAL
from lakeshare_server.tables.iceberg.deletes import MAGIC
from lakeshare_server.tables.index import FileIndex
from lakeshare_server.tables.lines import z85_bytes
from lakeshare_server.tables.serveability import CLIENTS
from lakeshare_server.versions import Version

if TYPE_CHECKING:
    from pyroaring import BitMap64

SOON = timedelta(days=14)


def token_status(by: Asked) -> dict[str, Any]:
    """Whose token it is, its state and its end, as JSON's types."""
    used = by.note.access.credential_id if by.note.access is not None else None
    with by.parts.catalog.reading() as session:
        tokens = states.recipient(session, by.reader.name).tokens
    # Those of an issuer elsewhere are not ours to tell of.
    token = next((one for one in tokens if one.id == used), None)
    ends = by.reader.expires_at
    now = datetime.now(UTC)
    is_replaced = token is not None and token.superseded_at is not None
    state = "replaced" if is_replaced else "ends soon" if ends is not None and ends - now < SOON else "valid"
    told = {
        "recipient": by.reader.name,
        "state": state,
        "told": _told(ends, is_replaced=is_replaced),
        "expiresAt": _iso(ends),
        "createdAt": _iso(token.created_at if token else None),
        "lastUsedAt": _iso(token.last_used_at if token else None),
    }
    return {name: value for name, value in told.items() if value is not None}


def _told(ends: datetime | None, *, is_replaced: bool) -> str:
    until = "further notice" if ends is None else f"{ends.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    if is_replaced:
        return f"There is a newer token; this one works until {until}"
    return f"The token works until {until}"


def _iso(at: datetime | None) -> str | None:
    return None if at is None else at.astimezone(UTC).isoformat()


FEATURES = sorted(frozenset[str]().union(*(client.features for client in CLIENTS)))
CAPABILITIES = f"responseformat=delta;readerfeatures={','.join(FEATURES)}"


class PlaceNames(SigningSession):
    """Names places where others sign URLs: for files that this process itself is to read."""

    def __init__(self) -> None:
        self.slow_store = None
        self.expires_at_ms = 0

    def sign(self, paths: pa.StringArray) -> list[bytes]:
        # Lines are JSON that nobody escapes any more: URLs need no escapes, so places are made like them.
        return [quote(path).encode() for path in paths.to_pylist()]


class PlaceSigners(Signers):
    """Signers whose sessions only name places."""

    def session(self, roots: Sequence[str], issue: Callable[[str], str], life_s: int) -> SigningSession:
        return PlaceNames()


def asked_in_place(by: AskedTable, signers: PlaceSigners) -> AskedTable:
    """The same request as a client would make it that reads everything; noted is what comes of this one."""
    headers = [(name, value) for name, value in by.request.scope["headers"] if name != HEADER.encode()]
    headers.append((HEADER.encode(), CAPABILITIES.encode()))
    request = Request({**by.request.scope, "headers": headers, "query_string": b""})
    # No URL leaves for what it answers: its files are not counted as those that were signed.
    parts, note = replace(by.parts, signers=signers), replace(by.note)
    return replace(by, request=request, parts=parts, note=note)


def query_lines(by: AskedTable, fields: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The lines of a query with these fields in its body, made while they are taken.

    Raises:
        LakeshareError: whatever the query is refused with.
    """
    return lines_of(answer_query(by, query_of(fields)))


def lines_of(answer: Response) -> Iterator[dict[str, Any]]:
    """The lines of a table's answer."""
    pieces = answer.pieces() if isinstance(answer, LinesResponse) else iter([answer.body])
    for piece in pieces:
        for line in bytes(piece).splitlines():
            yield orjson.loads(line)


def place_in(line: str) -> str:
    """The place that a line names."""
    return unquote(line)


BATCH_ROWS = 256
LONGEST_TEXT = 300
BINARY_BYTES = 16
WHOLE_SECONDS = re.compile(r"\.0+(?=Z|$)")
FIELD_ID = b"PARQUET:field_id"


@dataclass(frozen=True)
class Column:
    """A column of the schema that recipients see, with the name and id that it has in files."""

    name: str
    kind: Any
    physical_name: str
    field_id: int | None

    @classmethod
    def of(cls, field: Mapping[str, Any], mode: str) -> "Column":
        """The column of a field of a schema, whose columns are mapped in this mode."""
        metadata = field.get("metadata") or {}
        name = str(field["name"])
        physical = str(metadata.get("delta.columnMapping.physicalName", name)) if mode != "none" else name
        field_id = metadata.get("delta.columnMapping.id") if mode == "id" else None
        return cls(name, field["type"], physical, field_id)


class RowReader:
    """Reads rows of a table's files; the columns and how they are mapped come from its metadata line.

    `folders` are those of the server's own disk that the table has files in.
    """

    def __init__(
        self,
        settings: ServerSettings,
        stores: Stores,
        metadata: Mapping[str, Any],
        folders: Sequence[str],
    ) -> None:
        self._settings, self._stores, self._folders = settings, stores, folders
        self._mode = (metadata.get("configuration") or {}).get("delta.columnMapping.mode", "none")
        fields = json.loads(metadata["schemaString"])["fields"]
        self.columns = [Column.of(field, self._mode) for field in fields]

    def rows(self, add: Mapping[str, Any], wanted: int) -> Iterator[list[str | None]]:
        """At most so many rows of a file, as the delta format's `add` tells of it.

        Raises:
            StoreError, TableFilesMissing: the file is not there, or it is none that can be read.
            Unavailable: its store does not answer.
        """
        place = place_in(add["path"])
        deleted = self._deleted(add.get("deletionVector"))
        try:
            with closing(self._opened(place)) as source, pq.ParquetFile(source, buffer_size=1 << 16) as file:
                for batch, places in self._kept(file, deleted, wanted):
                    columns = [self._texts(column, batch, add["partitionValues"]) for column in self.columns]
                    yield from ([column[place] for column in columns] for place in places)
        except (pa.ArrowException, OSError) as error:
            raise TableFilesMissing(place, "one of its files is not whole") from error

    def _opened(self, place: str) -> Any:
        """A file as recipients may have it: of the local disk by the judgement of the byte endpoint."""
        if self._stores.place(place).kind != LOCAL:
            return self._stores.open(place)
        folder = next((one for one in self._folders if place.startswith(f"{one.rstrip('/')}/")), None)
        return opened_file(place, folder or posixpath.dirname(place), self._settings).stream

    def _kept(
        self, file: Any, deleted: "BitMap64 | None", wanted: int
    ) -> Iterator[tuple[pa.RecordBatch, list[int]]]:
        """Batches with the places in them that are shown."""
        names = [one for one in (self._stored(column, file.schema_arrow) for column in self.columns) if one]
        start = 0
        # Of a file without one of the columns the rows still count.
        for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=names or None):
            places = [
                place for place in range(batch.num_rows) if deleted is None or start + place not in deleted
            ][:wanted]
            start += batch.num_rows
            wanted -= len(places)
            if places:
                yield batch, places
            if wanted <= 0:
                return

    def _stored(self, column: Column, schema: pa.Schema) -> str | None:
        """What a column is called in a file; None where the file has none."""
        if column.field_id is None:
            return column.physical_name if column.physical_name in schema.names else None
        wanted = str(column.field_id).encode()
        return next((one.name for one in schema if (one.metadata or {}).get(FIELD_ID) == wanted), None)

    def _texts(
        self, column: Column, batch: pa.RecordBatch, partition: Mapping[str, str | None]
    ) -> Sequence[str | None]:
        for name in (column.physical_name, column.name):
            if name in partition:
                return [_short(partition[name])] * batch.num_rows
        stored = self._stored(column, batch.schema)
        if stored is None:
            return [None] * batch.num_rows
        return [_short(text) for text in _texts(batch.column(stored), column.kind, self._mode)]

    def _deleted(self, vector: Mapping[str, Any] | None) -> "BitMap64 | None":
        """The rows of a file that are deleted (Delta PROTOCOL.md, "Deletion Vectors")."""
        if vector is None:
            return None
        from pyroaring import BitMap64

        text, size = str(vector["pathOrInlineDv"]), int(vector["sizeInBytes"])
        if vector["storageType"] == "i":
            content = z85_bytes(text)[:size]
        else:
            place = place_in(text)
            with closing(self._opened(place)) as source:
                source.seek(int(vector.get("offset") or 0))
                (length,) = struct.unpack(">I", source.read(4))
                content = source.read(length)
        if content[: len(MAGIC)] != MAGIC or len(content) < size:
            raise TableFilesMissing(text, "a deletion vector is not whole")
        return BitMap64.deserialize(content[len(MAGIC) :])


def _texts(values: pa.Array, kind: Any, mode: str) -> list[str | None]:
    stored = values.type
    if isinstance(kind, Mapping):
        try:
            found = values.to_pylist()
        except (ValueError, OverflowError):
            # Python has no dates before year 1 and after 9999.
            return ["(cannot be shown)"] * len(values)
        return [None if one is None else _json(_named(one, kind, mode)) for one in found]
    if (
        pa.types.is_binary(stored)
        or pa.types.is_large_binary(stored)
        or pa.types.is_fixed_size_binary(stored)
    ):
        return [None if one is None else _hex(one) for one in values.to_pylist()]
    if pa.types.is_nested(stored):
        return [f"({kind})" if one else None for one in values.is_valid().to_pylist()]
    try:
        texts: list[str | None] = pc.cast(values, pa.string()).to_pylist()
    except pa.ArrowNotImplementedError:
        return [f"({stored})" if one else None for one in values.is_valid().to_pylist()]
    return (
        [text and WHOLE_SECONDS.sub("", text) for text in texts] if pa.types.is_timestamp(stored) else texts
    )


def _named(value: Any, kind: Any, mode: str) -> Any:
    """A nested value with the names that recipients know."""
    if not isinstance(kind, Mapping) or value is None:
        return value
    match kind.get("type"):
        case "struct":
            columns = [Column.of(field, mode) for field in kind["fields"]]
            return {one.name: _named(value.get(one.physical_name), one.kind, mode) for one in columns}
        case "array":
            return [_named(one, kind["elementType"], mode) for one in value]
        case "map":
            pairs = ((_named(key, kind["keyType"], mode), one) for key, one in value)
            return {str(key): _named(one, kind["valueType"], mode) for key, one in pairs}
        case _:
            return value


def _json(value: Any) -> str:
    return json.dumps(
        value, ensure_ascii=False, default=lambda one: _hex(one) if isinstance(one, bytes) else str(one)
    )


def _hex(content: bytes) -> str:
    more = "…" if len(content) > BINARY_BYTES else ""
    return f"0x{content[:BINARY_BYTES].hex()}{more}"


def _short(text: str | None) -> str | None:
    return text if text is None or len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}…"


ROWS = 50
MOST_ROWS = 500
# Rows are read into memory, a few files of a few tables at a time.
AT_ONCE = 4


@dataclass(frozen=True)
class Previews:
    """Reads rows for recipients, in the server's place; for many threads."""

    signers: PlaceSigners
    stores: Stores
    _turns: dict[tuple[str, ...], asyncio.Semaphore] = dataclass_field(default_factory=dict)

    def turns(self, services: Sequence[str]) -> asyncio.Semaphore:
        """What previews of tables in these services take turns by: one store that hangs holds up no other's."""
        return self._turns.setdefault(tuple(services), asyncio.Semaphore(AT_ONCE))

    def preview(self, by: AskedTable) -> dict[str, Any]:
        """The first rows as JSON's types: every value is a text or null.

        Raises:
            BadRequest: a parameter has a value that cannot be used.
            LakeshareError: whatever the query is refused with, or a file cannot be read.
        """
        query = by.request.query_params
        wanted = optional_number(query, "limit", low=1, high=MOST_ROWS) or ROWS
        version = optional_number(query, "version", said="table version")
        asked = asked_in_place(by, self.signers)
        # One row more than is shown says whether there are more.
        fields = {"limitHint": wanted + 1, **({} if version is None else {"version": version})}
        reader: RowReader | None = None
        rows: list[list[str | None]] = []
        by.note.files = 0
        for line in query_lines(asked, fields):
            if "metaData" in line:
                metadata = line["metaData"]["deltaMetadata"]
                reader = RowReader(by.parts.settings, self.stores, metadata, _folders(asked))
            elif "file" in line and reader is not None:
                by.note.files += 1
                rows += reader.rows(line["file"]["deltaSingleAction"]["add"], wanted + 1 - len(rows))
            if len(rows) > wanted:
                break
        by.note.version, by.note.rows = asked.note.version, min(len(rows), wanted)
        return {
            "version": by.note.version,
            "columns": [_column(one.name, one.kind) for one in reader.columns] if reader else [],
            "rows": rows[:wanted],
            "hasMore": len(rows) > wanted,
        }


def _folders(asked: AskedTable) -> list[str]:
    """The folders of the server's own disk that the version which was asked for has files in."""
    version = asked.view.latest() if asked.note.version is None else asked.view.pinned(asked.note.version)
    header = asked.view.index(version).header
    return local_folders(header.location, header.roots)


def _column(name: str, kind: Any) -> dict[str, str]:
    return {"name": name, "type": kind if isinstance(kind, str) else str(kind["type"])}


def table_facts(by: AskedTable, signers: PlaceSigners) -> dict[str, Any]:
    """The newest version of a table and its columns, as JSON's types.

    Raises:
        LakeshareError: whatever the metadata call is refused with.
    """
    told = next(
        line["metaData"]
        for line in lines_of(answer_metadata(asked_in_place(by, signers)))
        if "metaData" in line
    )
    entry, metadata = by.view.entry, told["deltaMetadata"]
    latest = by.view.latest()
    index = by.view.index(latest)
    partitions = set(metadata.get("partitionColumns") or ())
    return {
        "share": entry.share.name,
        "schema": entry.schema,
        "name": entry.name,
        "comment": entry.comment or metadata.get("description"),
        "format": index.header.table_format,
        "version": latest.number,
        "publishedAt": latest.timestamp_ms,
        "history": entry.history,
        "restricted": by.view.is_restricted,
        "sizeBytes": told.get("size"),
        "files": told.get("numFiles"),
        "rows": known_rows(index),
        "columns": [
            _described_column(field, field["name"] in partitions)
            for field in json.loads(metadata["schemaString"])["fields"]
        ],
    }


def known_rows(index: FileIndex) -> int | None:
    """The rows of a version; None if a file does not tell how many it has."""
    is_counted = all(batch.column("rows").null_count == 0 for batch in index.batches())
    return index.header.rows if is_counted else None


def _described_column(field: dict[str, Any], is_partition: bool) -> dict[str, Any]:
    return {
        "name": field["name"],
        "type": type_text(field["type"]),
        "nullable": field["nullable"],
        "partition": is_partition,
        "comment": (field.get("metadata") or {}).get("comment"),
    }


def type_text(kind: Any) -> str:
    """A type of Delta's schemas as people write it in SQL."""
    if isinstance(kind, str):
        return kind
    match kind.get("type"):
        case "struct":
            fields = (f"{field['name']}: {type_text(field['type'])}" for field in kind["fields"])
            return f"struct<{', '.join(fields)}>"
        case "array":
            return f"array<{type_text(kind['elementType'])}>"
        case "map":
            return f"map<{type_text(kind['keyType'])}, {type_text(kind['valueType'])}>"
        case other:
            return str(other)


PAGE_VERSIONS = 20
# Of one page of versions; a version with more changes is told of without their number.
MOST_LINES = 20_000
# Indexes of old versions may have to be built first: so long may a page wait for them.
LONGEST_S = 2.0
SIGNS = {"add": 1, "remove": -1}


def table_history(by: AskedTable, signers: PlaceSigners) -> dict[str, Any]:
    """One page of versions as JSON's types; `before` of the answer asks for the next one.

    Raises:
        BadRequest: `before` is no number.
        NotFound: nothing was published yet.
    """
    before = optional_number(by.request.query_params, "before")
    found = list(islice(_readable(by.view, before), PAGE_VERSIONS + 1))
    counting = _Counting(asked_in_place(by, signers)) if by.view.entry.history else None
    told = []
    for version, earlier in zip_longest(found[:PAGE_VERSIONS], found[1:]):
        changes = counting.changes(version, earlier) if counting else None
        told.append({"version": version.number, "publishedAt": version.timestamp_ms, "changes": changes})
    by.note.version = found[0].number if found else None
    has_more = len(found) > PAGE_VERSIONS
    return {
        "history": by.view.entry.history,
        "versions": told,
        "before": found[PAGE_VERSIONS - 1].number if has_more else None,
    }


def _readable(view: TableView, before: int | None) -> Iterator[Version]:
    """The versions below a number, newest first."""
    first, latest = view.first_readable(), view.latest()
    found: Version | None = latest
    if before is not None and before <= latest.number:
        found = view.versions.at_or_below(before - 1) if before > first else None
    while found is not None and found.number >= first:
        yield found
        found = view.versions.at_or_below(found.number - 1) if found.number > first else None


class _Counting:
    """Counts what the versions of a page changed, within bounds for all of them together."""

    def __init__(self, asked: AskedTable) -> None:
        self._asked = asked
        self._lines = MOST_LINES
        self._ends_at = time.monotonic() + LONGEST_S

    def changes(self, version: Version, earlier: Version | None) -> dict[str, int | str | None] | None:
        """The files that a version added and removed, and the rows it has more than the one before it.

        None stands for more than may be counted, or for rows that files do not tell; a refusal has its reason.
        """
        files, rows, is_counted = Counter[str](), 0, True
        fields = {"startingVersion": version.number, "endingVersion": version.number}
        try:
            for line in query_lines(self._asked, fields):
                for word, sign in SIGNS.items():
                    file = line.get("file", {}).get("deltaSingleAction", {}).get(word)
                    if file is None:
                        continue
                    self._lines -= 1
                    if self._lines < 0:
                        return None
                    files[word] += 1
                    of_file = _live_rows(file)
                    is_counted = is_counted and of_file is not None
                    rows += sign * (of_file or 0)
            more = rows if is_counted else self._more_rows(version, earlier)
        except LakeshareError as error:
            return {"refusal": error.for_recipient()}
        return {"filesAdded": files["add"], "filesRemoved": files["remove"], "rows": more}

    def _more_rows(self, version: Version, earlier: Version | None) -> int | None:
        """By the indexes of both versions: the log of a table need not tell the rows of a file that it removes."""
        if earlier is None or time.monotonic() > self._ends_at:
            return None
        counts = [known_rows(self._asked.view.index(one)) for one in (version, earlier)]
        return None if counts[0] is None or counts[1] is None else counts[0] - counts[1]


def _live_rows(file: dict[str, Any]) -> int | None:
    """The rows of a file, if its statistics tell."""
    rows = orjson.loads(file["stats"]).get("numRecords") if file.get("stats") else None
    return (
        None if rows is None else max(0, rows - ((file.get("deletionVector") or {}).get("cardinality") or 0))
    )


API = f"{PORTAL_PATH}/api"
TABLE = f"{API}/shares/{{share}}/schemas/{{schema}}/tables/{{table}}"
FOR_EVER = "public, max-age=31536000, immutable"
ASKED_AGAIN = "no-cache"

router = APIRouter()


async def previews_of(request: Request) -> Previews:
    """What reads rows for pages."""
    previews: Previews = request.app.state.previews
    return previews


PreviewsDep = Annotated[Previews, Depends(previews_of)]


@router.get("/", name="root")
def root(parts: PartsDep, note: NoteDep) -> Response:
    """Redirect a person who opens the server in a browser to the portal."""
    note.action = "root"
    return RedirectResponse(parts.settings.root_path() + PORTAL_PATH)


@router.get(PORTAL_PATH, name="portal")
def portal(parts: PartsDep, note: NoteDep) -> Response:
    note.action = "portal"
    settings = parts.settings
    endpoint = settings.root_path() + settings.endpoint.rstrip("/")
    return page("portal.html", settings, endpoint=endpoint, protocol=settings.base_url())


@router.get(f"{STATIC_PATH}/{{name}}", name="page_file")
def page_file(name: str, request: Request, note: NoteDep) -> Response:
    note.action = "page_file"
    found = static_file(name)
    if found is None:
        return error_response(
            404, "RESOURCE_DOES_NOT_EXIST", "There is no such file.", {"Cache-Control": NO_STORE}
        )
    content, media_type, digest = found
    is_named = request.query_params.get("v") == digest
    headers = {"Cache-Control": FOR_EVER if is_named else ASKED_AGAIN, "ETag": f'"{digest}"'}
    if matches(request.headers.get("if-none-match", ""), headers["ETag"]):
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers, media_type=media_type)


@router.get(f"{API}/status", name="portal_status")
def portal_status(by: AskedDep) -> Response:
    return json_response(token_status(by))


@router.get(f"{TABLE}/about", name="portal_about")
@in_table_pool
def portal_about(by: TableDep, previews: PreviewsDep) -> Response:
    by.note.version = by.view.latest().number
    return json_response(table_facts(by, previews.signers))


@router.get(f"{TABLE}/versions", name="portal_versions")
@in_table_pool
def portal_versions(by: TableDep, previews: PreviewsDep) -> Response:
    return json_response(table_history(by, previews.signers))


@router.get(f"{TABLE}/preview", name="portal_preview")
async def portal_preview(by: TableDep, previews: PreviewsDep) -> Response:
    # Waiting for its turn it holds none of the threads that answer the others.
    async with previews.turns(by.view.services):
        return json_response(await by.run(previews.preview, by))


@router.get(f"{TABLE}/code", name="portal_code")
@in_table_pool
def portal_code(by: TableDep) -> Response:
    return json_response({"snippets": table_code(by)})
