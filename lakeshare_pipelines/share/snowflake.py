"""Snowflake: an external Iceberg table there shows the newest publication of a table. See docs/adr/0018."""

import gzip
import json
import re
from collections.abc import Iterator, Mapping, Set
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import orjson
from pydantic import SecretStr

from lakeshare_pipelines.errors import NoSuchPublication, SnowflakeError
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_server.catalog import Catalog, FollowedTables, Ledger, Publication
from lakeshare_server.catalog.ledger import TableFormat
from lakeshare_server.errors import BadRequest, TableFilesMissing
from lakeshare_server.settings import StoreSettings
from lakeshare_server.storage import Stores, parse_location
from lakeshare_server.tables.delta.log import list_for_latest

if TYPE_CHECKING:
    from snowflake.connector import SnowflakeConnection

GZIP = b"\x1f\x8b"


@dataclass(frozen=True)
class MetadataState:
    """The snapshots of one Iceberg metadata file; `current` is None while a table has no snapshot."""

    current: int | None
    snapshots: frozenset[int]
    refs: Mapping[str, int]  # branches and tags


def read_metadata_state(metadata_location: str, settings: StoreSettings) -> MetadataState:
    """The snapshots that readers of a metadata file can reach."""
    text = Stores(settings).read(metadata_location)
    try:
        metadata = orjson.loads(gzip.decompress(text) if text.startswith(GZIP) else text)
        current = metadata.get("current-snapshot-id")
        return MetadataState(
            # Older writers have -1 for none.
            current=None if current in (None, -1) else int(current),
            snapshots=frozenset(int(listed["snapshot-id"]) for listed in metadata.get("snapshots") or ()),
            refs={name: int(ref["snapshot-id"]) for name, ref in (metadata.get("refs") or {}).items()},
        )
    except (ValueError, TypeError, KeyError, AttributeError, OSError, EOFError) as error:
        raise TableFilesMissing(metadata_location, "it is no Iceberg metadata file, or incomplete") from error


def path_below(location: str, base: str, settings: StoreSettings) -> str | None:
    """The path of a location below another one in the same store, without slashes at its ends; else None."""
    inner, outer = (parse_location(given, settings.azure_account) for given in (location, base))
    prefix = f"{outer.key.strip('/')}/".lstrip("/")
    key = inner.key.strip("/")
    if (inner.kind, inner.root) != (outer.kind, outer.root) or not key.startswith(prefix) or key == prefix:
        return None
    return key.removeprefix(prefix)


PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_$]*")
EXACT = re.compile(r'"(?:[^"]|"")*"')
LONGEST = 255


@dataclass(frozen=True)
class TableName:
    """A table in Snowflake, by default in the database and schema of the session."""

    name: str
    schema: str | None = None
    database: str | None = None

    def __post_init__(self) -> None:
        if self.database is not None and self.schema is None:
            raise BadRequest("schema", None, f"Give the schema of the database {self.database}, too.")

    @property
    def sql(self) -> str:
        parts = (("database", self.database), ("schema", self.schema), ("name", self.name))
        return ".".join(quote_identifier(field, part) for field, part in parts if part is not None)


def quote_identifier(field: str, name: str) -> str:
    """A name as a quoted identifier, in upper case unless it needs quotes; raises `BadRequest` for the `field`."""
    return _quote(_parse_name(field, name))


def quote_name_as_text(field: str, name: str) -> str:
    """The name of a volume or an integration where Snowflake expects a text."""
    meant = _parse_name(field, name)
    return quote_literal(meant if PLAIN.fullmatch(meant) and meant == meant.upper() else _quote(meant))


def quote_literal(text: str) -> str:
    """A text in single quotes; in Snowflake a backslash begins an escape, too."""
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def _parse_name(field: str, name: str) -> str:
    folded = name.upper() if PLAIN.fullmatch(name) else name
    meant = name[1:-1].replace('""', '"') if EXACT.fullmatch(name) else folded
    if not meant or len(meant) > LONGEST or not meant.isprintable():
        raise BadRequest(field, name, f"Give 1 to {LONGEST} characters that can be printed.")
    return meant


def _quote(meant: str) -> str:
    return '"' + meant.replace('"', '""') + '"'


TAG = "lakeshare"
REQUEST_S, STATEMENT_S = 60, 900
NOT_ALLOWED, NOT_FOUND, NO_WAREHOUSE = 3001, (2003, 2043), 606
# SQLSTATE classes of refused logins and of network failures.
LOGIN, NETWORK = "28", ("08", "HYT")
REMEDIES = {
    NOT_ALLOWED: "Grant LAKESHARE_SNOWFLAKE_ROLE usage of the warehouse, database, schema, volume and integration, "
    "CREATE ICEBERG TABLE in the schema, and ownership of the table.",
    **dict.fromkeys(
        NOT_FOUND,
        "Create the object, or grant LAKESHARE_SNOWFLAKE_ROLE its usage: Snowflake reports both cases alike. "
        "`lakeshare snowflake ddl TABLE --with-integrations` prints the statements for volume and integration.",
    ),
    NO_WAREHOUSE: "Set LAKESHARE_SNOWFLAKE_WAREHOUSE to one that the role may use.",
}


class SnowflakeSession:
    """Runs statements; `query_ids` are their ids in Snowflake, in order."""

    def __init__(self, connection: "SnowflakeConnection", settings: LakeSettings) -> None:
        self._connection, self._settings = connection, settings
        self.query_ids: list[str] = []

    def run(self, statement: str, *bound: str) -> Any:
        """The first value of the first row of a statement's result, None without one; raises `SnowflakeError`."""
        from snowflake.connector import Error

        with self._connection.cursor() as cursor:
            try:
                cursor.execute(statement, bound or None)
                row = cursor.fetchone()
            except Error as error:
                raise translate_error(error, self._settings, statement) from None
            if cursor.sfqid:
                self.query_ids.append(cursor.sfqid)
        return row[0] if row else None


@contextmanager
def snowflake_session(settings: LakeSettings) -> Iterator[SnowflakeSession]:
    """A session as configured, logged out at the end of the block; raises `SnowflakeError`."""
    parameters = connect_parameters(settings)
    try:
        from snowflake.connector import Error, connect
    except ImportError:
        fix = "Install lakeshare[snowflake] where Dagster runs."
        raise SnowflakeError("snowflake-connector-python is not installed", fix) from None
    try:
        connection = connect(**parameters)
    except Error as error:
        raise translate_error(error, settings, None) from None
    try:
        yield SnowflakeSession(connection, settings)
    finally:
        connection.close()


def connect_parameters(settings: LakeSettings) -> dict[str, Any]:
    """Arguments for the connector; raises `SnowflakeError` when a setting is missing."""
    if not settings.snowflake_account or not settings.snowflake_user:
        missing = "ACCOUNT" if not settings.snowflake_account else "USER"
        raise SnowflakeError(f"LAKESHARE_SNOWFLAKE_{missing} is not set", "Set it where Dagster runs.")
    url = urlsplit(settings.snowflake_url) if settings.snowflake_url is not None else None
    parameters = {
        "account": settings.snowflake_account,
        "user": settings.snowflake_user,
        "role": settings.snowflake_role,
        "warehouse": settings.snowflake_warehouse,
        "login_timeout": settings.snowflake_login_s,
        "request_timeout": REQUEST_S,
        "query_timeout": STATEMENT_S,
        "client_session_keep_alive": False,
        "enable_server_session_keep_alive_auto_detection": False,
        # Statements appear in Snowflake's history with this tag; the connector sends no telemetry.
        "session_parameters": {"QUERY_TAG": TAG, "CLIENT_TELEMETRY_ENABLED": False},
        **_credentials(settings),
        "protocol": url and url.scheme,
        "host": url and url.hostname,
        "port": url and url.port,
    }
    return {name: value for name, value in parameters.items() if value is not None}


def translate_error(error: Any, settings: LakeSettings, statement: str | None) -> SnowflakeError:
    """The connector's error with Snowflake's message, the statement and the remedy, without secrets."""
    code, state = getattr(error, "errno", None), str(getattr(error, "sqlstate", None) or "")
    message = " ".join(str(getattr(error, "raw_msg", None) or error).split())
    for secret in (settings.snowflake_password, settings.snowflake_private_key_passphrase):
        if text := _reveal_secret(secret):
            message = message.replace(text, "…")
    if state.startswith(LOGIN):
        return SnowflakeError(
            f"the login of {settings.snowflake_user} was refused: {message}",
            "Check LAKESHARE_SNOWFLAKE_ACCOUNT, _USER, and _PASSWORD or _PRIVATE_KEY_FILE.",
        )
    if state.startswith(NETWORK):
        return SnowflakeError(
            f"there is no connection: {message}",
            "Check the network and LAKESHARE_SNOWFLAKE_ACCOUNT or _URL; then run this again.",
            passing=True,
        )
    query = getattr(error, "sfqid", None)
    what = f"{statement.splitlines()[0]} failed" if statement else "the login failed"
    history = f"Snowflake's query history has it as {query}." if query else "See Snowflake's query history."
    remedy = REMEDIES.get(code, "") if isinstance(code, int) else ""
    return SnowflakeError(f"{what}: {message} [{code}]", f"{remedy} {history}".strip())


def _credentials(settings: LakeSettings) -> dict[str, Any]:
    key, password = settings.snowflake_private_key_file, settings.snowflake_password
    if (key is None) == (password is None):
        raise SnowflakeError(
            f"{'neither' if key is None else 'both'} LAKESHARE_SNOWFLAKE_PASSWORD and _PRIVATE_KEY_FILE are set",
            "Set one of them.",
        )
    if key is None:
        return {"password": _reveal_secret(password)}
    return {
        "authenticator": "SNOWFLAKE_JWT",
        "private_key_file": str(key),
        "private_key_password": _reveal_secret(settings.snowflake_private_key_passphrase),
    }


def _reveal_secret(secret: SecretStr | None) -> str | None:
    return None if secret is None else secret.get_secret_value()


AZURE = re.compile(r"azure://([^./]+)\.blob\.([^/]+)/([^/]+)/?(.*)", re.DOTALL)
STORE_ROOT = re.compile(r"[a-z0-9]+://[^/]+")
MAX_NAMED = 5  # snapshots, in a message


@dataclass(frozen=True)
class PublishedTable:
    """A publication, and the snapshots of all publications of its Iceberg table."""

    publication: Publication
    snapshots: Set[int] = frozenset()


@dataclass(frozen=True)
class PublishedState:
    """The file or folder that Snowflake opens for a publication: an Iceberg metadata file, or a Delta table's folder.

    `path` is relative to the volume's location; both are without a slash at the end.
    """

    publication: Publication
    path: str
    volume_location: str

    @property
    def opened(self) -> str:
        return f"{self.volume_location}/{self.path}"


def get_published_state(
    published: PublishedTable, volume_location: str | None, settings: StoreSettings
) -> PublishedState:
    """The state to open, by default in the root of the table's store; raises `SnowflakeError`."""
    publication = published.publication
    opened = publication.metadata_location if publication.format == "iceberg" else publication.location
    if opened is None:
        raise SnowflakeError(f"{_name(publication)} names no metadata file", "Publish the table again.")
    root = STORE_ROOT.match(opened)
    if root is None or opened.startswith("file:"):
        raise SnowflakeError(
            f"{publication.table} is on a local disk, which Snowflake does not reach",
            "Keep the table in S3, Google Cloud Storage or Azure.",
        )
    base = normalize_location(volume_location or root[0])
    path = path_below(opened, base, settings)
    if path is None:
        raise SnowflakeError(
            f"{publication.table} is not below the volume's location {volume_location}: it is at {opened}",
            "Give the location that the external volume has as STORAGE_BASE_URL, or another volume.",
        )
    require_readable(published, settings)
    return PublishedState(publication, path, base.rstrip("/"))


def require_readable(published: PublishedTable, settings: StoreSettings) -> None:
    """Raise `SnowflakeError` unless Snowflake would show the publication, and nothing that was never published."""
    publication = published.publication
    if publication.format == "delta":
        newest = list_for_latest(Stores(settings), publication.location.rstrip("/")).latest
        if newest != publication.delta_version:
            raise SnowflakeError(
                f"{_name(publication)} is Delta version {publication.delta_version}, but Snowflake would read version "
                f"{newest}, the newest one of the log",
                "Snowflake cannot be held at an older version of a Delta table: publish the newest one.",
            )
        return
    state = read_metadata_state(publication.metadata_location or "", settings)
    if state.current != publication.snapshot_id:
        raise SnowflakeError(
            f"{_name(publication)} is snapshot {publication.snapshot_id}, but Snowflake would read snapshot "
            f"{state.current}, which is the current one of its metadata file",
            "Publish the table again, so that a metadata file has the published snapshot as its current one.",
        )
    hidden = sorted((state.snapshots | set(state.refs.values())) - published.snapshots)
    if hidden:
        names = [name for name, snapshot in sorted(state.refs.items()) if snapshot in hidden]
        by_name = f", by the names {', '.join(names)}" if names else ""
        some = ", ".join(map(str, hidden[:MAX_NAMED])) + (", …" if len(hidden) > MAX_NAMED else "")
        raise SnowflakeError(
            f"the metadata file of {_name(publication)} lists {len(hidden)} snapshots that were never published "
            f"({some}{by_name}), and Snowflake would let its users read them",
            "Drop such branches and tags, run CALL system.expire_snapshots with these snapshot_ids, and publish the "
            "table again.",
        )


def _name(publication: Publication) -> str:
    return f"publication {publication.version} of {publication.table}"


def normalize_location(location: str) -> str:
    """A location with an Azure container as `abfss://`, from Snowflake's `azure://`; others unchanged."""
    spelt = AZURE.fullmatch(location)
    return f"abfss://{spelt[3]}@{spelt[1]}.dfs.{spelt[2]}/{spelt[4]}" if spelt else location


ROLE_ARN, TENANT_ID = "<ARN of the role that Snowflake assumes>", "<tenant id>"
ACCESS = {
    "S3": (f"STORAGE_AWS_ROLE_ARN = {quote_literal(ROLE_ARN)}",),
    "GCS": (),
    "AZURE": (f"AZURE_TENANT_ID = {quote_literal(TENANT_ID)}",),
}
PROVIDERS = {"s3": "S3", "s3a": "S3", "s3n": "S3", "gs": "GCS", "gcs": "GCS"}
URL_SCHEMES = {"S3": "s3", "GCS": "gcs", "AZURE": "azure"}


@dataclass(frozen=True)
class SnowflakeObjects:
    """The names of the objects in Snowflake: the table, the volume it is read through, the catalog integration."""

    table: TableName
    external_volume: str
    catalog_integration: str


def format_create_table(state: PublishedState, objects: SnowflakeObjects) -> str:
    if state.publication.format == "iceberg":
        source = [f"METADATA_FILE_PATH = {quote_literal(state.path)}"]
    else:
        # By default Snowflake would follow the log to versions that are not published.
        source = [f"BASE_LOCATION = {quote_literal(state.path)}", "AUTO_REFRESH = FALSE"]
    lines = [
        f"CREATE ICEBERG TABLE IF NOT EXISTS {objects.table.sql}",
        f"EXTERNAL_VOLUME = {quote_name_as_text('external volume', objects.external_volume)}",
        f"CATALOG = {quote_name_as_text('catalog integration', objects.catalog_integration)}",
        *source,
    ]
    return "\n  ".join(lines)


def format_refresh_table(state: PublishedState, objects: SnowflakeObjects) -> str:
    path = f" {quote_literal(state.path)}" if state.publication.format == "iceberg" else ""
    return f"ALTER ICEBERG TABLE {objects.table.sql} REFRESH{path}"


def format_create_volume(state: PublishedState, objects: SnowflakeObjects) -> str:
    scheme, _, rest = state.volume_location.partition("://")
    provider = PROVIDERS.get(scheme, "AZURE")
    root, _, key = rest.partition("/")
    if provider == "AZURE":
        container, _, host = root.partition("@")
        root = f"{host.replace('.dfs.', '.blob.')}/{container}"
    base = "/".join(part for part in (f"{URL_SCHEMES[provider]}://{root}", key.strip("/")) if part) + "/"
    location = [
        "NAME = 'lakeshare'",
        f"STORAGE_PROVIDER = {quote_literal(provider)}",
        f"STORAGE_BASE_URL = {quote_literal(base)}",
        *ACCESS[provider],
    ]
    inner = "\n    ".join(location)
    return (
        f"CREATE EXTERNAL VOLUME IF NOT EXISTS {quote_identifier('external volume', objects.external_volume)}\n"
        f"  STORAGE_LOCATIONS = ((\n    {inner}\n  ))\n  ALLOW_WRITES = FALSE"
    )


def format_create_integration(state: PublishedState, objects: SnowflakeObjects) -> str:
    name = quote_identifier("catalog integration", objects.catalog_integration)
    return (
        f"CREATE CATALOG INTEGRATION IF NOT EXISTS {name}\n  CATALOG_SOURCE = OBJECT_STORE\n"
        f"  TABLE_FORMAT = {state.publication.format.upper()}\n  ENABLED = TRUE"
    )


def format_script(
    state: PublishedState, objects: SnowflakeObjects, *, with_integrations: bool = False
) -> str:
    """All statements as a script for a worksheet, each with its reason."""
    publication = state.publication
    kind = "" if publication.audited else ", unaudited: followed in storage"
    table, location = (" ".join(text.split()) for text in (publication.table, state.volume_location))
    lines = [
        f"-- Publication {publication.version} of {table}{kind}.",
        f"-- The external volume's STORAGE_BASE_URL is {location}/",
    ]
    if with_integrations:
        lines += [
            "-- Once, as a role that may create them; put in what stands in <angle brackets>.",
            format_create_volume(state, objects) + ";\n",
            format_create_integration(state, objects) + ";\n",
        ]
    note = "-- Shows the newest version of the Delta log: run it only while that is the published one."
    if publication.format == "iceberg":
        note = "-- Shows this publication and no other, also in a table that was there before."
    create, refresh = format_create_table(state, objects), format_refresh_table(state, objects)
    return "\n".join([*lines, f"{create};\n", note, f"{refresh};\n"])


def find_published(catalog: Catalog, table: str, version: int | None = None) -> PublishedTable:
    """A publication of a table, the newest by default, with the snapshots of all that Snowflake may show.

    Snowflake, as recipients, loses the unaudited versions of a table that is no longer followed.

    Raises:
        BadRequest: the table has no publication.
        NoSuchPublication: the table has no such number.
    """
    ledger = Ledger(catalog, readable_only=FollowedTables(catalog).get(table) is None)
    history = ledger.history(table)
    if not history:
        published = ", ".join(ledger.tables()) or "none"
        raise BadRequest("TABLE", table, f"Published are: {published}. Publish it, or follow it, first.")
    snapshots = {row.snapshot_id for row in history if row.snapshot_id is not None}
    for publication in history:
        if version in (None, publication.version):
            return PublishedTable(publication, snapshots)
    raise NoSuchPublication(table, version or 0)


def get_snowflake_objects(
    table: TableName, table_format: TableFormat, settings: LakeSettings
) -> SnowflakeObjects:
    """The objects that the settings name for a table of a format; raises `SnowflakeError` when a name is not set."""
    integration = f"snowflake_{table_format}_integration"
    volume = settings.snowflake_external_volume
    catalog: str | None = getattr(settings, integration)
    if not volume or not catalog:
        missing = "snowflake_external_volume" if not volume else integration
        option = "--external-volume" if not volume else "--catalog-integration"
        raise SnowflakeError(
            f"no name is set for {missing.removeprefix('snowflake_').replace('_', ' ')}",
            f"Set LAKESHARE_{missing.upper()}, or give {option} to the command; "
            "`lakeshare snowflake ddl TABLE --with-integrations` prints the statement that makes one.",
        )
    return SnowflakeObjects(table, volume, catalog)


TABLE_INFORMATION_SQL = "SELECT SYSTEM$GET_ICEBERG_TABLE_INFORMATION(%s)"
ATTEMPTS = 5


@dataclass(frozen=True)
class SyncResult:
    """The publication that Snowflake's `table` shows, and the file or folder opened for it."""

    table: str
    publication: Publication
    opened: str
    query_ids: tuple[str, ...]


def sync_table(catalog: Catalog, table: str, target: TableName, settings: LakeSettings) -> SyncResult:
    """Create the table `target` in Snowflake if it is missing, and bring it to the newest publication of `table`.

    Two concurrent runs both end at the newest publication: each reads the ledger again at its end.

    Raises:
        SnowflakeError: the publication cannot be shown, or Snowflake refused, did not respond, or shows another state.
        BadRequest: the table has no publication.
    """
    published = find_published(catalog, table)
    with ExitStack() as stack:
        session = None
        for _ in range(ATTEMPTS):
            objects = get_snowflake_objects(target, published.publication.format, settings)
            state = get_published_state(published, settings.snowflake_volume_location, settings)
            session = session or stack.enter_context(snowflake_session(settings))
            session.run(format_create_table(state, objects))
            session.run(format_refresh_table(state, objects))
            if state.publication.format == "iceberg":
                _require_opened(session, state, objects, settings)
            else:
                # The log may have grown. Snowflake's own report would write metadata into the table's folder.
                require_readable(published, settings)
            published = find_published(catalog, table)
            if published.publication.version == state.publication.version:
                query_ids = tuple(session.query_ids)
                return SyncResult(target.sql, published.publication, state.opened, query_ids)
    raise SnowflakeError(
        f"{table} was published {ATTEMPTS} times while {target.sql} was brought to it",
        "Run this again when the publications have ended.",
        passing=True,
    )


def _require_opened(
    session: SnowflakeSession, state: PublishedState, objects: SnowflakeObjects, settings: LakeSettings
) -> None:
    """Raises `SnowflakeError` when an existing table of that name reads from another location."""
    location = _metadata_location(session.run(TABLE_INFORMATION_SQL, objects.table.sql))
    try:
        path = path_below(normalize_location(location), state.volume_location, settings) if location else None
    except BadRequest:
        path = None
    if path != state.path:
        raise SnowflakeError(
            f"{objects.table.sql} shows {location or 'no metadata file'} instead of {state.opened}",
            "A table of that name was there before: drop it in Snowflake, or give another name in the contract; or "
            "the volume is another one than LAKESHARE_SNOWFLAKE_VOLUME_LOCATION says.",
        )


def _metadata_location(response: object) -> str | None:
    """The location in the response of SYSTEM$GET_ICEBERG_TABLE_INFORMATION: a JSON object as text."""
    try:
        information = json.loads(str(response))
    except ValueError:
        return None
    location = information.get("metadataLocation") if isinstance(information, Mapping) else None
    return location if isinstance(location, str) and location else None
