"""The recipient's portal: a static page, and its API, which the page calls with the token of the profile."""

import asyncio
import json
import posixpath
import re
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

from lakeshare_server.access.allowed_locations import local_folders
from lakeshare_server.access.table_access import TableView
from lakeshare_server.catalog import states
from lakeshare_server.errors import LakeshareError, TableFilesMissing
from lakeshare_server.locations import LOCAL
from lakeshare_server.pages.rendering import NO_STORE, STATIC_PATH, render_page, static_files, table_code
from lakeshare_server.protocol.lines import HEADER
from lakeshare_server.protocol.requests import matches_etag, optional_integer, parse_query
from lakeshare_server.routes import context
from lakeshare_server.routes.context import RecipientRequest, TableRequest, TableRequestDep
from lakeshare_server.routes.files import open_file
from lakeshare_server.routes.responses import LinesResponse, error_response, json_response
from lakeshare_server.routes.tables import respond_to_query, respond_with_metadata
from lakeshare_server.settings import CONSOLE_PATH, PORTAL_PATH, ServerSettings
from lakeshare_server.storage import Signers, SigningSession, Stores
from lakeshare_server.tables.iceberg.deletes import MAGIC
from lakeshare_server.tables.index import FileIndex
from lakeshare_server.tables.lines import decode_z85
from lakeshare_server.tables.serveability import CLIENTS
from lakeshare_server.text_fields import TEXT_FIELDS
from lakeshare_server.versions import Version

if TYPE_CHECKING:
    from pyroaring import BitMap64

ENDING_SOON = timedelta(days=14)
FEATURES = sorted(frozenset[str]().union(*(client.features for client in CLIENTS)))
CAPABILITIES = f"responseformat=delta;readerfeatures={','.join(FEATURES)}"


def describe_token(request: RecipientRequest) -> dict[str, Any]:
    """The token's recipient, state and end, as JSON types."""
    used = request.audit_record.access.credential_id if request.audit_record.access is not None else None
    with request.app_state.catalog.reading() as session:
        recipient = states.get_recipient(session, request.reader.name)
    # Tokens of other issuers are not in the list.
    token = next((token for token in recipient.tokens if token.id == used), None)
    texts = {text.label: getattr(recipient, text.name) for text in TEXT_FIELDS["recipient"] if text.in_portal}
    ends = request.reader.expires_at
    until = "further notice" if ends is None else f"{ends.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    state, text = "valid", f"The token works until {until}"
    if token is not None and token.superseded_at is not None:
        state, text = "replaced", f"There is a newer token; this one works until {until}"
    elif ends is not None and ends - datetime.now(UTC) < ENDING_SOON:
        state = "ends soon"
    status = {
        "recipient": request.reader.name,
        "state": state,
        "message": text,
        "expiresAt": _format_iso(ends),
        "createdAt": _format_iso(token.created_at if token else None),
        "lastUsedAt": _format_iso(token.last_used_at if token else None),
        "texts": {label: text for label, text in texts.items() if text is not None} or None,
    }
    return {name: value for name, value in status.items() if value is not None}


def _format_iso(at: datetime | None) -> str | None:
    return None if at is None else at.astimezone(UTC).isoformat()


class LocationSigner(SigningSession):
    """Returns locations in place of signed URLs, for files that this process reads itself."""

    def __init__(self) -> None:
        self.slow_store = None
        self.expires_at_ms = 0

    def sign(self, paths: pa.StringArray) -> pa.StringArray:
        # Lines are not escaped again: locations are quoted like URLs.
        return pa.array(map(quote, paths.to_pylist()), pa.string())


class LocationSigners(Signers):
    """Signers whose sessions return locations."""

    def session(self, roots: Sequence[str], issue: Callable[[str], str], life_s: int) -> SigningSession:
        return LocationSigner()


def local_request(request: TableRequest, signers: LocationSigners) -> TableRequest:
    """The request of a client that reads every feature, with its own audit record."""
    given = request.http_request.scope["headers"]
    headers = [(name, value) for name, value in given if name != HEADER.encode()]
    headers.append((HEADER.encode(), CAPABILITIES.encode()))
    http_request = Request({**request.http_request.scope, "headers": headers, "query_string": b""})
    # Its URLs are not given out, so its files are not counted as signed.
    app_state, audit_record = request.app_state.with_signers(signers), replace(request.audit_record)
    return replace(request, http_request=http_request, app_state=app_state, audit_record=audit_record)


def query_lines(request: TableRequest, fields: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The lines of a query with these fields, produced lazily; raises `LakeshareError` as the query."""
    return parse_lines(respond_to_query(request, parse_query(fields)))


def parse_lines(response: Response) -> Iterator[dict[str, Any]]:
    """The lines of a table's response."""
    pieces = response.pieces() if isinstance(response, LinesResponse) else iter([response.body])
    for piece in pieces:
        for line in bytes(piece).splitlines():
            yield orjson.loads(line)


BATCH_ROWS = 256
MAX_TEXT_CHARS = 300
BINARY_BYTES = 16
WHOLE_SECONDS = re.compile(r"\.0+(?=Z|$)")
FIELD_ID = b"PARQUET:field_id"
BINARY_KINDS = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)


@dataclass(frozen=True)
class Column:
    """A column of the schema for recipients, with its name and id in files."""

    name: str
    kind: Any
    physical_name: str
    field_id: int | None

    @classmethod
    def of(cls, field: Mapping[str, Any], mode: str) -> "Column":
        """The column of a schema's field, in a column mapping mode."""
        metadata = field.get("metadata") or {}
        name = str(field["name"])
        physical = str(metadata.get("delta.columnMapping.physicalName", name)) if mode != "none" else name
        field_id = metadata.get("delta.columnMapping.id") if mode == "id" else None
        return cls(name, field["type"], physical, field_id)


class RowReader:
    """Reads rows of a table's files with its metadata line; `folders` are its folders on the server's disk."""

    def __init__(
        self, settings: ServerSettings, stores: Stores, metadata: Mapping[str, Any], folders: Sequence[str]
    ) -> None:
        self._settings, self._stores, self._folders = settings, stores, folders
        self._mode = (metadata.get("configuration") or {}).get("delta.columnMapping.mode", "none")
        fields = json.loads(metadata["schemaString"])["fields"]
        self.columns = [Column.of(field, self._mode) for field in fields]

    def rows(self, add: Mapping[str, Any], max_rows: int) -> Iterator[list[str | None]]:
        """At most `max_rows` rows of a file of the delta format's `add`; raises `StoreError` if it cannot be read."""
        location = unquote(add["path"])
        deleted = self._read_deleted(add.get("deletionVector"))
        try:
            with closing(self._open(location)) as source, pq.ParquetFile(source, buffer_size=1 << 16) as file:
                for batch, positions in self._select_rows(file, deleted, max_rows):
                    columns = [self._format(column, batch, add["partitionValues"]) for column in self.columns]
                    yield from ([column[position] for column in columns] for position in positions)
        except (pa.ArrowException, OSError) as error:
            raise TableFilesMissing(location, "one of its files is not whole") from error

    def _open(self, location: str) -> Any:
        """A file; on the local disk with the checks of the byte endpoint."""
        if self._stores.place(location).kind != LOCAL:
            return self._stores.open(location)
        folders = (folder for folder in self._folders if location.startswith(f"{folder.rstrip('/')}/"))
        return open_file(location, next(folders, posixpath.dirname(location)), self._settings).stream

    def _select_rows(
        self, file: Any, deleted: "BitMap64 | None", max_rows: int
    ) -> Iterator[tuple[pa.RecordBatch, list[int]]]:
        """Batches with the positions of their live rows, up to `max_rows`."""
        stored = (self._find_name(column, file.schema_arrow) for column in self.columns)
        names = [name for name in stored if name]
        start = 0
        # The rows of a file without any of the columns count, too.
        for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=names or None):
            live = (row for row in range(batch.num_rows) if deleted is None or start + row not in deleted)
            positions = list(islice(live, max_rows))
            start += batch.num_rows
            max_rows -= len(positions)
            if positions:
                yield batch, positions
            if max_rows <= 0:
                return

    def _find_name(self, column: Column, schema: pa.Schema) -> str | None:
        """The name of a column in a file; None where the file does not have it."""
        if column.field_id is None:
            return column.physical_name if column.physical_name in schema.names else None
        field_id = str(column.field_id).encode()
        names = (field.name for field in schema if (field.metadata or {}).get(FIELD_ID) == field_id)
        return next(names, None)

    def _format(
        self, column: Column, batch: pa.RecordBatch, partition: Mapping[str, str | None]
    ) -> Sequence[str | None]:
        for name in (column.physical_name, column.name):
            if name in partition:
                return [_shorten(partition[name])] * batch.num_rows
        stored = self._find_name(column, batch.schema)
        if stored is None:
            return [None] * batch.num_rows
        return [_shorten(text) for text in _format_values(batch.column(stored), column.kind, self._mode)]

    def _read_deleted(self, vector: Mapping[str, Any] | None) -> "BitMap64 | None":
        """The rows of a file that are deleted (Delta PROTOCOL.md, "Deletion Vectors")."""
        if vector is None:
            return None
        from pyroaring import BitMap64

        text, size = str(vector["pathOrInlineDv"]), int(vector["sizeInBytes"])
        if vector["storageType"] == "i":
            content = decode_z85(text)[:size]
        else:
            with closing(self._open(unquote(text))) as source:
                source.seek(int(vector.get("offset") or 0))
                content = source.read(int.from_bytes(source.read(4), "big"))
        if content[: len(MAGIC)] != MAGIC or len(content) < size:
            raise TableFilesMissing(text, "a deletion vector is not whole")
        return BitMap64.deserialize(content[len(MAGIC) :])


def _format_values(values: pa.Array, kind: Any, mode: str) -> list[str | None]:
    stored = values.type
    if isinstance(kind, Mapping):
        return [_format_nested(value, kind, mode) for value in values]
    if any(is_kind(stored) for is_kind in BINARY_KINDS):
        return [None if value is None else _format_hex(value) for value in values.to_pylist()]
    if pa.types.is_nested(stored):
        return [f"({kind})" if is_set else None for is_set in values.is_valid().to_pylist()]
    try:
        texts: list[str | None] = pc.cast(values, pa.string()).to_pylist()
    except pa.ArrowNotImplementedError:
        return [f"({stored})" if is_set else None for is_set in values.is_valid().to_pylist()]
    if pa.types.is_timestamp(stored):
        return [text and WHOLE_SECONDS.sub("", text) for text in texts]
    return texts


def _format_nested(stored: pa.Scalar, kind: Any, mode: str) -> str | None:
    try:
        value = stored.as_py()
    except (ValueError, OverflowError):
        # Python has no dates before year 1 and after 9999.
        return "(cannot be shown)"
    if value is None:
        return None
    named = _name_fields(value, kind, mode)
    return json.dumps(
        named, ensure_ascii=False, default=lambda v: _format_hex(v) if isinstance(v, bytes) else str(v)
    )


def _name_fields(value: Any, kind: Any, mode: str) -> Any:
    """A nested value with the recipients' names of its fields."""
    if not isinstance(kind, Mapping) or value is None:
        return value
    match kind.get("type"):
        case "struct":
            columns = (Column.of(field, mode) for field in kind["fields"])
            return {c.name: _name_fields(value.get(c.physical_name), c.kind, mode) for c in columns}
        case "array":
            return [_name_fields(item, kind["elementType"], mode) for item in value]
        case _:
            pairs = ((_name_fields(key, kind["keyType"], mode), item) for key, item in value)
            return {str(key): _name_fields(item, kind["valueType"], mode) for key, item in pairs}


def _format_hex(content: bytes) -> str:
    more = "…" if len(content) > BINARY_BYTES else ""
    return f"0x{content[:BINARY_BYTES].hex()}{more}"


def _shorten(text: str | None) -> str | None:
    return text if text is None or len(text) <= MAX_TEXT_CHARS else f"{text[:MAX_TEXT_CHARS]}…"


ROWS = 50
MAX_ROWS = 500
# Rows are read into memory, from a few files of a few tables at a time.
AT_ONCE = 4


@dataclass(frozen=True)
class Previews:
    """Reads rows for recipients in this process; for many threads."""

    signers: LocationSigners
    stores: Stores
    _turns: dict[tuple[str, ...], asyncio.Semaphore] = dataclass_field(default_factory=dict)

    def turns(self, services: Sequence[str]) -> asyncio.Semaphore:
        """The semaphore for previews of tables in these services, so that a slow store delays no other."""
        return self._turns.setdefault(tuple(services), asyncio.Semaphore(AT_ONCE))

    def preview(self, request: TableRequest) -> dict[str, Any]:
        """The first rows as JSON types: every value is a text or null; raises `BadRequest` for parameters."""
        query = request.http_request.query_params
        max_rows = optional_integer(query, "limit", low=1, high=MAX_ROWS) or ROWS
        version = optional_integer(query, "version", label="table version")
        local = local_request(request, self.signers)
        # One row more than is shown, to know whether there are more.
        fields = {"limitHint": max_rows + 1, **({} if version is None else {"version": version})}
        reader: RowReader | None = None
        rows: list[list[str | None]] = []
        request.audit_record.files = 0
        for line in query_lines(local, fields):
            if "metaData" in line:
                metadata = line["metaData"]["deltaMetadata"]
                reader = RowReader(request.app_state.settings, self.stores, metadata, _folders(local))
            elif "file" in line and reader is not None:
                request.audit_record.files += 1
                rows += reader.rows(line["file"]["deltaSingleAction"]["add"], max_rows + 1 - len(rows))
            if len(rows) > max_rows:
                break
        request.audit_record.version = local.audit_record.version
        request.audit_record.rows = min(len(rows), max_rows)
        return {
            "version": request.audit_record.version,
            "columns": [
                {"name": c.name, "type": c.kind if isinstance(c.kind, str) else str(c.kind["type"])}
                for c in (reader.columns if reader else ())
            ],
            "rows": rows[:max_rows],
            "hasMore": len(rows) > max_rows,
        }


def _folders(request: TableRequest) -> list[str]:
    view, number = request.view, request.audit_record.version
    header = view.index(view.latest() if number is None else view.pinned(number)).header
    return local_folders(header.location, header.roots)


def describe_table(request: TableRequest, signers: LocationSigners) -> dict[str, Any]:
    """The newest version of a table and its columns, as JSON types; raises `LakeshareError` as the metadata call."""
    facts = next(
        line["metaData"]
        for line in parse_lines(respond_with_metadata(local_request(request, signers)))
        if "metaData" in line
    )
    entry, metadata = request.view.entry, facts["deltaMetadata"]
    latest = request.view.latest()
    index = request.view.index(latest)
    partitions = set(metadata.get("partitionColumns") or ())
    return {
        "share": entry.share,
        "schema": entry.schema,
        "name": entry.name,
        "comment": entry.comment or metadata.get("description"),
        "notice": entry.notice,
        "format": index.header.table_format,
        "version": latest.number,
        "publishedAt": latest.timestamp_ms,
        "history": entry.history,
        "restricted": request.view.is_restricted,
        "sizeBytes": facts.get("size"),
        "files": facts.get("numFiles"),
        "rows": count_rows(index),
        "columns": [
            {
                "name": field["name"],
                "type": format_type(field["type"]),
                "nullable": field["nullable"],
                "partition": field["name"] in partitions,
                "comment": (field.get("metadata") or {}).get("comment"),
            }
            for field in json.loads(metadata["schemaString"])["fields"]
        ],
    }


def count_rows(index: FileIndex) -> int | None:
    """The rows of a version; None if a file has no row count."""
    is_counted = all(batch.column("rows").null_count == 0 for batch in index.batches(["rows"]))
    return index.header.rows if is_counted else None


def format_type(kind: Any) -> str:
    if isinstance(kind, str):
        return kind
    match kind.get("type"):
        case "struct":
            fields = (f"{field['name']}: {format_type(field['type'])}" for field in kind["fields"])
            return f"struct<{', '.join(fields)}>"
        case "array":
            return f"array<{format_type(kind['elementType'])}>"
        case _:
            return f"map<{format_type(kind['keyType'])}, {format_type(kind['valueType'])}>"


PAGE_VERSIONS = 20
# Per page of versions; a version with more changes has no counts.
MAX_LINES = 20_000
# Indexes of old versions may have to be built first; a page waits this long for them.
MAX_COUNTING_S = 2.0
SIGNS = {"add": 1, "remove": -1}


def list_versions(request: TableRequest, signers: LocationSigners) -> dict[str, Any]:
    """One page of versions as JSON types; `before` of the response requests the next page."""
    before = optional_integer(request.http_request.query_params, "before")
    page = list(islice(_iterate_versions(request.view, before), PAGE_VERSIONS + 1))
    counter = _ChangeCounter(local_request(request, signers)) if request.view.entry.history else None
    listed = []
    for version, earlier in zip_longest(page[:PAGE_VERSIONS], page[1:]):
        changes = counter.count(version, earlier) if counter else None
        listed.append({"version": version.number, "publishedAt": version.timestamp_ms, "changes": changes})
    request.audit_record.version = page[0].number if page else None
    has_more = len(page) > PAGE_VERSIONS
    return {
        "history": request.view.entry.history,
        "versions": listed,
        "before": page[PAGE_VERSIONS - 1].number if has_more else None,
    }


def _iterate_versions(view: TableView, before: int | None) -> Iterator[Version]:
    """The versions below a number, newest first."""
    first, latest = view.first_readable(), view.latest()
    version: Version | None = latest
    if before is not None and before <= latest.number:
        version = view.versions.at_or_below(before - 1) if before > first else None
    while version is not None and version.number >= first:
        yield version
        version = view.versions.at_or_below(version.number - 1) if version.number > first else None


class _ChangeCounter:
    """Counts the changes of the versions of a page, within bounds for all of them together."""

    def __init__(self, request: TableRequest) -> None:
        self._request = request
        self._lines = MAX_LINES
        self._ends_at = time.monotonic() + MAX_COUNTING_S

    def count(self, version: Version, earlier: Version | None) -> dict[str, int | str | None] | None:
        """The files that a version added and removed, and its additional rows, or a refusal; None above the bounds."""
        files, rows, is_counted = Counter[str](), 0, True
        fields = {"startingVersion": version.number, "endingVersion": version.number}
        try:
            for line in query_lines(self._request, fields):
                for word, sign in SIGNS.items():
                    file = line.get("file", {}).get("deltaSingleAction", {}).get(word)
                    if file is None:
                        continue
                    self._lines -= 1
                    if self._lines < 0:
                        return None
                    files[word] += 1
                    of_file = _count_live_rows(file)
                    is_counted = is_counted and of_file is not None
                    rows += sign * (of_file or 0)
            more = rows if is_counted else self._more_rows(version, earlier)
        except LakeshareError as error:
            return {"refusal": error.for_recipient()}
        return {"filesAdded": files["add"], "filesRemoved": files["remove"], "rows": more}

    def _more_rows(self, version: Version, earlier: Version | None) -> int | None:
        """From the indexes of both versions: a log may lack the row counts of the files it removes."""
        if earlier is None or time.monotonic() > self._ends_at:
            return None
        rows, rows_before = (count_rows(self._request.view.index(each)) for each in (version, earlier))
        return None if rows is None or rows_before is None else rows - rows_before


def _count_live_rows(file: dict[str, Any]) -> int | None:
    """The rows of a file, None without statistics."""
    rows = orjson.loads(file["stats"]).get("numRecords") if file.get("stats") else None
    deleted = (file.get("deletionVector") or {}).get("cardinality") or 0
    return None if rows is None else max(0, rows - deleted)


API = f"{PORTAL_PATH}/api"
TABLE = f"{API}/shares/{{share}}/schemas/{{schema}}/tables/{{table}}"
CACHE_FOREVER = "public, max-age=31536000, immutable"
REVALIDATE = "no-cache"

router = APIRouter()


async def get_previews(http_request: Request) -> Previews:
    previews: Previews = http_request.app.state.previews
    return previews


PreviewsDep = Annotated[Previews, Depends(get_previews)]


@router.get("/", name="root")
def root(
    http_request: Request, app_state: context.AppStateDep, audit_record: context.AuditRecordDep
) -> Response:
    """A page for browsers that leads to portal and console; for other clients, the addresses of the APIs as JSON."""
    audit_record.action = "root"
    settings = app_state.settings
    path = settings.root_path()
    if "text/html" in http_request.headers.get("accept", ""):
        return render_page("root.html", settings, console_path=path + CONSOLE_PATH)
    base = settings.base_url().removesuffix(settings.endpoint.rstrip("/"))
    pages = {
        "portal": PORTAL_PATH,
        "console": CONSOLE_PATH,
        "adminApi": "/api",
        "adminApiDocument": "/api/openapi.json",
    }
    return json_response(
        {
            "provider": settings.provider_name or settings.host_name(),
            "deltaSharing": settings.base_url(),
            "icebergRest": settings.iceberg_url(),
            **{name: base + page for name, page in pages.items()},
        }
    )


@router.get(PORTAL_PATH, name="portal")
def portal(app_state: context.AppStateDep, audit_record: context.AuditRecordDep) -> Response:
    audit_record.action = "portal"
    settings = app_state.settings
    endpoint = settings.root_path() + settings.endpoint.rstrip("/")
    return render_page("portal.html", settings, endpoint=endpoint, protocol=settings.base_url())


@router.get(f"{STATIC_PATH}/{{name}}", name="page_file")
def page_file(name: str, http_request: Request, audit_record: context.AuditRecordDep) -> Response:
    audit_record.action = "page_file"
    file = static_files().get(name)
    if file is None:
        headers = {"Cache-Control": NO_STORE}
        return error_response(404, "RESOURCE_DOES_NOT_EXIST", "There is no such file.", headers)
    content, media_type, digest = file
    is_versioned = http_request.query_params.get("v") == digest
    headers = {"Cache-Control": CACHE_FOREVER if is_versioned else REVALIDATE, "ETag": f'"{digest}"'}
    if matches_etag(http_request.headers.get("if-none-match", ""), headers["ETag"]):
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers, media_type=media_type)


@router.get(f"{API}/status", name="portal_status")
def portal_status(request: context.RecipientRequestDep) -> Response:
    return json_response(describe_token(request))


@router.get(f"{TABLE}/about", name="portal_about")
@context.in_table_pool
def portal_about(request: TableRequestDep, previews: PreviewsDep) -> Response:
    request.audit_record.version = request.view.latest().number
    return json_response(describe_table(request, previews.signers))


@router.get(f"{TABLE}/versions", name="portal_versions")
@context.in_table_pool
def portal_versions(request: TableRequestDep, previews: PreviewsDep) -> Response:
    return json_response(list_versions(request, previews.signers))


@router.get(f"{TABLE}/preview", name="portal_preview")
async def portal_preview(request: TableRequestDep, previews: PreviewsDep) -> Response:
    # A request that waits for its turn holds no thread.
    async with previews.turns(request.view.services):
        return json_response(await request.run(previews.preview, request))


@router.get(f"{TABLE}/code", name="portal_code")
@context.in_table_pool
def portal_code(request: TableRequestDep) -> Response:
    return json_response({"snippets": table_code(request)})
