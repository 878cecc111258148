"""The sources of a followed Iceberg table's current metadata file: one file, a folder, a catalog, a Nessie branch."""

import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import quote

import httpx
from pydantic import ValidationError

from lakeshare_server import errors
from lakeshare_server.catalog.ledger import IN_CATALOGS
from lakeshare_server.nessie import ICEBERG_TABLE, NessieApi, ref_path
from lakeshare_server.outbound import Service
from lakeshare_server.settings import StoreSettings
from lakeshare_server.storage import StoredObject, Stores, normalise_location
from lakeshare_server.tables.delta.log import LOG

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

T = TypeVar("T")


@dataclass(frozen=True)
class Pointer:
    """The current metadata file; `mark` changes with its content, `commit` is the Nessie commit it was read at."""

    metadata_location: str
    mark: str
    commit: str | None = None


@dataclass(frozen=True)
class BranchState:
    """An earlier state of a table on a Nessie branch: the commit, its time, and the table in it."""

    commit: str
    at_ms: int
    metadata_location: str
    snapshot_id: int


class MetadataSource:
    """The source of one table. Errors are for the operator: they name locations and catalogs.

    All methods raise Unserveable, StoreError or BadRequest for permanent errors, Unavailable for temporary ones.
    """

    root: str | None = None
    """The folder that the metadata must have as its location; None for sources without a folder."""

    def current(self, known: Pointer | None) -> Pointer:
        """The current metadata file; `known` is the last result, which saves requests."""
        raise NotImplementedError

    def states_since(self, commit: str | None, until: Pointer) -> Sequence[BranchState] | None:
        """The states after a commit, oldest first; None where the metadata has its own snapshot log."""
        return None

    def siblings(self) -> list[str]:
        """The names of the Iceberg tables in the table's namespace, without nested ones; for catalogs only."""
        raise NotImplementedError


METADATA = "metadata"
HINT = "version-hint.text"
ENDINGS = (".metadata.json", ".gz.metadata.json")
# Early writers put the codec last.
OLD_ENDING = ".metadata.json.gz"
# Some catalogs use times in nanoseconds as numbers.
OF_HADOOP = re.compile(r"v([0-9]{1,20})(?:\.gz)?\.metadata\.json(?:\.gz)?")
OF_CATALOG = re.compile(r"([0-9]{1,20})-[\w-]{36}(?:\.gz)?\.metadata\.json(?:\.gz)?")
OF_HINT = re.compile(r"[\w.-]{1,250}")
# Names of metadata files without their endings.
STEM = re.compile(r"v[0-9]{1,20}|[0-9]{1,20}-[\w-]{36}")
# A hint with a slash names a location.
PLACE_IN_HINT = re.compile(r"[!-~]{0,1000}/[!-~]{0,1000}")
# Number of files in an error message.
NAMED = 5
# Higher numbers are not in the order of their names, or precede numbers that are not.
IN_ORDER_OF_NAMES = 90_000
# A catalog that takes over a table begins with the lowest numbers.
FIRST_OF_CATALOG = "0"
BEHIND_FIRST_OF_CATALOG = "0001"


def is_metadata_file(location: str) -> bool:
    return location.endswith((*ENDINGS, OLD_ENDING))


class FixedMetadata(MetadataSource):
    def __init__(self, stores: Stores, location: str) -> None:
        self._stores, self._location = stores, location

    def current(self, known: Pointer | None) -> Pointer:
        file = self._stores.head(self._location)
        if file is None:
            raise errors.StoreMissing(self._location)
        return _pointer(file)


class MetadataFolder(MetadataSource):
    def __init__(self, stores: Stores, root: str) -> None:
        self._stores = stores
        self.root = root.rstrip("/")
        self._folder = f"{self.root}/{METADATA}"
        # The number in the hint that led to the last result.
        self._hinted: int | None = None

    def current(self, known: Pointer | None) -> Pointer:
        """The newest metadata file; raises `TableFilesMissing` without one, `Unserveable` if it is ambiguous."""
        hinted, self._hinted = self._hinted, None
        file = self._find_newest(known, hinted)
        if file is None:
            raise errors.TableFilesMissing(str(self.root), "there is no Iceberg metadata in its folder")
        return _pointer(file)

    def _find_newest(self, known: Pointer | None, hinted_before: int | None) -> StoredObject | None:
        hint = self._read_hint()
        number = int(hint) if hint is not None and hint.isdigit() else None
        if hint is not None and number is None and (named := self._find_named(hint)) is not None:
            return named
        kept = None if known is None else self._stores.head(known.metadata_location)
        if kept is not None and _pointer(kept) != known:
            kept = None
        if number is not None:
            newest = self._find_newest_of_hadoop(number, kept if number == hinted_before else None)
            if newest is not None:
                self._require_no_catalog(is_first_time=kept is None or hinted_before is None)
                self._hinted = number
                return newest
        # Files of a catalog are listed from the known one on, while their names are in the order of their numbers.
        kept_number = 0 if kept is None else self._read_number(kept, OF_CATALOG)
        return self._find_in_listing(kept_number if kept_number < IN_ORDER_OF_NAMES else 0, number)

    def _read_hint(self) -> str | None:
        """The content of the hint: a number, or the name of a file with or without its ending."""
        try:
            hint = self._stores.read(f"{self._folder}/{HINT}").strip()
        except errors.StoreMissing:
            return None
        text = hint.decode("ascii", "replace")
        if PLACE_IN_HINT.fullmatch(text):
            raise self._unclear(f"a hint that names {text}, which is no file of its folder")
        return text if OF_HINT.fullmatch(text) else None

    def _find_named(self, hint: str) -> StoredObject | None:
        """The file that the hint names; None if it is not a file name."""
        is_whole = is_metadata_file(hint)
        file = self._stores.head(f"{self._folder}/{hint}") if is_whole else self._find_with_ending(hint)
        if file is None and (is_whole or STEM.fullmatch(hint)):
            raise self._unclear(f"a hint that names {hint}, which is not there")
        return file

    def _read_number(self, file: StoredObject, pattern: re.Pattern[str]) -> int:
        """The number in a file's name; 0 for other names."""
        match = pattern.fullmatch(self._name(file.location))
        return 0 if match is None else int(match[1])

    def _find_newest_of_hadoop(self, number: int, kept: StoredObject | None) -> StoredObject | None:
        """The last file that follows this number, or `kept`, without a gap: hints may lag behind."""
        newest = None
        if kept is not None:
            newest, number = kept, self._read_number(kept, OF_HADOOP) + 1
        while (file := self._find_with_ending(f"v{number}")) is not None:
            newest, number = file, number + 1
        return newest

    def _find_with_ending(self, stem: str) -> StoredObject | None:
        """The metadata file with this name and any ending, in the order of Iceberg's Java classes."""
        names = (f"{self._folder}/{stem}{ending}" for ending in (*ENDINGS, OLD_ENDING))
        return next((file for name in names if (file := self._head(name)) is not None), None)

    def _require_no_catalog(self, *, is_first_time: bool) -> None:
        """Refuses a hint's file where a catalog writes, too; calls after the first list the first names only."""
        after = f"{self._folder}/{FIRST_OF_CATALOG}"
        for file in self._stores.list(self._folder, after):
            name = self._name(file.location)
            if name > BEHIND_FIRST_OF_CATALOG and not is_first_time:
                break
            if OF_CATALOG.fullmatch(name):
                raise self._unclear(f"a hint that gives a number, and metadata files of a catalog ({name})")

    def _head(self, location: str) -> StoredObject | None:
        try:
            return self._stores.head(location)
        except errors.StoreDenied:
            # Stores that know Iceberg (SeaweedFS's table buckets) refuse names that Iceberg does not write.
            folder, _, name = location.rpartition("/")
            after = f"{folder}/{name.partition('.')[0]}."
            if any(file.location == location for file in self._stores.list(folder, after)):
                raise
            return None

    def _find_in_listing(self, from_number: int, hinted: int | None = None) -> StoredObject | None:
        numbered: list[tuple[int, bool, StoredObject]] = []
        others: list[str] = []
        for name, file in self._list_metadata_files(from_number):
            of_hadoop = OF_HADOOP.fullmatch(name)
            match = of_hadoop or OF_CATALOG.fullmatch(name)
            if match is None:
                others.append(name)
            else:
                numbered.append((int(match[1]), of_hadoop is not None, file))
        if others:
            names = ", ".join(sorted(others)[:NAMED]) + (", …" if len(others) > NAMED else "")
            raise self._unclear(f"metadata files whose names have no order ({names})")
        if not numbered:
            return None
        if len({is_hadoop for _, is_hadoop, _ in numbered}) > 1:
            raise self._unclear("metadata files of a Hadoop catalog and of another one")
        highest = max(number for number, _, _ in numbered)
        if hinted is not None and highest < hinted:
            raise self._unclear(f"metadata files up to number {highest} and a hint that says {hinted}")
        newest = [file for number, _, file in numbered if number == highest]
        if len(newest) > 1:
            raise self._unclear(f"{len(newest)} metadata files of number {highest}")
        return newest[0]

    def _list_metadata_files(self, from_number: int) -> Iterator[tuple[str, StoredObject]]:
        after = f"{self._folder}/{from_number:05d}-" if from_number else None
        for file in self._stores.list(self._folder, after):
            name = self._name(file.location)
            # Hidden files are checksums of Hadoop's file system.
            if is_metadata_file(name) and "/" not in name and not name.startswith("."):
                yield name, file

    def _name(self, location: str) -> str:
        return location[len(self._stores.place(f"{self._folder}/").location) :]

    def _unclear(self, what: str) -> errors.Unserveable:
        return errors.Unserveable(
            f"{self.root} has {what}, so its newest state is not known.",
            "Follow the table through its catalog (iceberg:CATALOG/NAMESPACE.TABLE), or one metadata file of it.",
        )


def _pointer(file: StoredObject) -> Pointer:
    return Pointer(file.location, f"{file.etag or file.modified_ms} {file.size_bytes}")


REFUSED = ("AccessDeniedException", "InvalidSignatureException", "UnrecognizedClientException")
GLUE_RETRIES = "glue.max-retries"


class CatalogTable(MetadataSource):
    def __init__(
        self, name: str, identifier: tuple[str, ...], settings: StoreSettings, service: Service
    ) -> None:
        self._name, self._identifier, self._settings = name, identifier, settings
        self._service = service
        self._opened: Catalog | None = None

    def current(self, known: Pointer | None) -> Pointer:
        """The metadata file in the catalog; raises `BadRequest` for its configuration, `Unserveable` for a refusal."""
        location = self._service.call(lambda: self._translate_errors(self._read_location))
        return Pointer(location, location)

    def siblings(self) -> list[str]:
        def list_names(catalog: "Catalog") -> list[str]:
            return [identifier[-1] for identifier in catalog.list_tables(self._identifier[:-1])]

        return sorted(self._service.call(lambda: self._translate_errors(list_names)))

    def _read_location(self, catalog: "Catalog") -> str:
        # Glue has the file in the table's parameters; pyiceberg would also read the file.
        glue = getattr(catalog, "glue", None)
        if glue is not None:
            return self._read_from_glue(glue)
        location = catalog.load_table(self._identifier).metadata_location
        if not location:
            raise self._permanent("has no metadata file")
        return location

    def _read_from_glue(self, glue: Any) -> str:
        from pyiceberg.exceptions import NoSuchTableError

        *namespace, table = self._identifier
        try:
            table_input = glue.get_table(DatabaseName=".".join(namespace), Name=table)["Table"]
        except glue.exceptions.EntityNotFoundException as error:
            raise NoSuchTableError(".".join(self._identifier)) from error
        location: str | None = table_input.get("Parameters", {}).get("metadata_location")
        if not location:
            raise self._permanent("is no Iceberg table")
        return location

    def _translate_errors(self, call: "Callable[[Catalog], T]") -> T:
        from pyiceberg.catalog import load_catalog

        try:
            if self._opened is None:
                properties = {**_default_properties(self._settings), **catalog_configuration(self._name)}
                # Botocore expects a number; environment variables are texts.
                properties[GLUE_RETRIES] = int(properties[GLUE_RETRIES])
                self._opened = load_catalog(self._name, **properties)
            return call(self._opened)
        except Exception as error:  # each catalog has its own errors
            raise self._translate(error) from error

    def _translate(self, error: Exception) -> errors.LakeshareError:
        from pyiceberg import exceptions

        if isinstance(error, errors.LakeshareError):
            return error
        if isinstance(error, exceptions.NoSuchTableError | exceptions.NoSuchNamespaceError):
            return self._permanent("is not in its catalog")
        # A new connection may succeed where the old one did not.
        self._opened = None
        refusals = exceptions.ForbiddenError, exceptions.UnauthorizedError, exceptions.OAuthError
        if isinstance(error, refusals) or _code(error) in REFUSED:
            return self._permanent(f"is refused to our credentials ({type(error).__name__} {_code(error)})")
        if isinstance(error, exceptions.NotInstalledError):
            return errors.BadRequest("LOCATION", f"iceberg:{self._name}", f"{error}.")
        # The messages of other libraries may contain passwords.
        configure = _configure(self._name)
        # A response that is none of a catalog, as of a proxy, is no fault of the configuration.
        if isinstance(error, ValueError | TypeError) and not isinstance(error, ValidationError):
            hint = f"pyiceberg cannot use what is configured ({type(error).__name__}). {configure}"
            return errors.BadRequest("LOCATION", f"iceberg:{self._name}", hint)
        why = f"{type(error).__name__} {_code(error)}".rstrip()
        what = f"the Iceberg catalog {self._name} cannot be asked ({why})"
        return errors.Unavailable(what, f"Try again. {configure}")

    def _permanent(self, what: str) -> errors.Unserveable:
        # The location is one word, which is removed for recipients.
        return errors.Unserveable(
            f"iceberg:{self._name}/{'.'.join(self._identifier)} {what}.",
            "Check the table's name, and the catalog's configuration where the server runs.",
        )


def catalog_configuration(name: str) -> dict[str, Any]:
    """The present configuration of a catalog in pyiceberg; raises `BadRequest` when it has none."""
    from pyiceberg.utils.config import Config

    config = Config()
    try:
        configured = config.get_catalog_config(name)
        known = ", ".join(sorted(config.get_known_catalogs())) or "none"
    except ValueError as error:
        raise errors.BadRequest(
            "LOCATION", name, f"pyiceberg's configuration cannot be used: {error}"
        ) from error
    if configured is None:
        hint = f"No Iceberg catalog of this name is configured; known are: {known}. {_configure(name)}"
        raise errors.BadRequest("LOCATION", name, hint)
    return cast(dict[str, Any], dict(configured))


def _default_properties(settings: StoreSettings) -> Mapping[str, str]:
    configured = {"s3.endpoint": settings.s3_endpoint, "s3.region": settings.s3_region}
    # pyiceberg's default of ten attempts takes twenty seconds.
    return {GLUE_RETRIES: "2"} | {name: value for name, value in configured.items() if value}


def _configure(name: str) -> str:
    variable = f"PYICEBERG_CATALOG__{name.upper().replace('-', '_')}"
    return f"Name it in .pyiceberg.yaml or by {variable}__URI and __TYPE, for the server, too."


def _code(error: Exception) -> str:
    """The code in an error of AWS, which has one class for all errors."""
    response = getattr(error, "response", None)
    return str(response.get("Error", {}).get("Code", "")) if isinstance(response, dict) else ""


REQUEST_TIMEOUT_S = 20
# States before so many commits are not searched for.
MAX_COMMITS = 10_000


class NessieTable(MetadataSource):
    def __init__(self, name: str, identifier: tuple[str, ...], branch: str, service: Service) -> None:
        self._name, self._identifier, self._branch = name, identifier, branch
        self._service = service

    def current(self, known: Pointer | None) -> Pointer:
        """The metadata file at the branch's head; raises `BadRequest` or `Unserveable` as `CatalogTable.current`."""
        key = quote(".".join(self._identifier), safe="")
        reference = self._api().get(f"{ref_path(self._branch)}/contents/{key}")
        with self._check_response():
            content, commit = reference["content"], str(reference["effectiveReference"]["hash"])
            if content["type"] != ICEBERG_TABLE:
                raise self._refusal(f"is no Iceberg table but a {content['type']}")
            location = str(content["metadataLocation"])
            return Pointer(location, location, commit)

    def states_since(self, commit: str | None, until: Pointer) -> Sequence[BranchState] | None:
        """The states of the branch after a commit; none if the commit is no longer in the branch."""
        if commit is None or commit == until.commit:
            return ()
        states: list[BranchState] = []
        with self._check_response():
            path = f"{ref_path(f'{self._branch}@{until.commit}')}/history"
            for count, entry in enumerate(self._api().pages(path, "logEntries", {"fetch": "ALL"})):
                if entry["commitMeta"]["hash"] == commit:
                    return states[::-1]
                if count >= MAX_COMMITS:
                    break
                states += self._read_states(entry)
        return ()

    def siblings(self) -> list[str]:
        with self._check_response():
            entries = self._api().pages(f"{ref_path(self._branch)}/entries", "entries", {})
            names = [entry["name"]["elements"] for entry in entries if entry["type"] == ICEBERG_TABLE]
            return sorted(table for *namespace, table in names if tuple(namespace) == self._identifier[:-1])

    def _read_states(self, entry: dict[str, Any]) -> Iterator[BranchState]:
        meta = entry["commitMeta"]
        for operation in entry.get("operations") or ():
            content = operation.get("content") or {}
            is_ours = operation["key"]["elements"] == list(self._identifier)
            if is_ours and operation["type"] == "PUT" and content.get("type") == ICEBERG_TABLE:
                at_ms = int(datetime.fromisoformat(meta["commitTime"]).timestamp() * 1000)
                location, snapshot_id = content["metadataLocation"], int(content["snapshotId"])
                yield BranchState(meta["hash"], at_ms, location, snapshot_id)

    def _api(self) -> NessieApi:
        configured = catalog_configuration(self._name)
        uri = str(configured.get("uri", ""))
        if not uri.startswith(("http://", "https://")):
            hint = "Its uri in pyiceberg's configuration must be that of Nessie's API, like http://host:19120/api/v2."
            raise errors.BadRequest("LOCATION", self._name, hint)
        token = configured.get("token")
        return NessieApi(uri, token, self._make_error, timeout_s=REQUEST_TIMEOUT_S, run=self._service.call)

    def _make_error(self, status: int, _code: str, message: str) -> errors.LakeshareError:
        if status in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            return self._refusal(f"is refused to our token ({status})")
        if status == httpx.codes.NOT_FOUND:
            return self._refusal("is not there")
        return self._unreachable(f"status {status}" if status else message)

    @contextmanager
    def _check_response(self) -> Iterator[None]:
        try:
            yield
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            why = f"the response is not one of Nessie's API, {type(error).__name__}"
            raise self._unreachable(why) from error

    def _refusal(self, what: str) -> errors.Unserveable:
        # The location is one word, which is removed for recipients.
        return errors.Unserveable(
            f"nessie:{self._name}/{'.'.join(self._identifier)}@{self._branch} {what}.",
            "Check table and branch, and uri and token in the catalog's configuration where the server runs.",
        )

    def _unreachable(self, why: str) -> errors.Unavailable:
        return errors.Unavailable(
            f"the Nessie catalog {self._name} cannot be asked ({why})",
            "Try again; its uri must be that of the API, like http://host:19120/api/v2.",
        )


IN_CATALOG = re.compile(
    r"(?P<kind>iceberg|nessie):(?P<catalog>[A-Za-z0-9_-]+)/(?P<table>[^/@\s.]+(?:\.[^/@\s.]+)+)(?:@(?P<branch>[^\s@]+))?"
)
SPELLINGS = (
    "Spell it iceberg:CATALOG/NAMESPACE.TABLE or nessie:CATALOG/NAMESPACE.TABLE@BRANCH, where CATALOG is one of "
    "pyiceberg's configuration."
)
MAIN = "main"
MAX_PARALLEL_READS = 16


def normalise_followed_location(location: str, settings: StoreSettings) -> str:
    """The location in normal form; raises `BadRequest` for an unknown form or catalog. Reads only configuration."""
    if not location.strip():
        raise errors.BadRequest("location", location, "Give the place of a Delta or Iceberg table.")
    if not location.startswith(IN_CATALOGS):
        is_path = not re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", location)
        return normalise_location(
            str(Path(location).expanduser().absolute()) if is_path else location, settings.azure_account
        )
    match = IN_CATALOG.fullmatch(location)
    if match is None:
        raise errors.BadRequest("LOCATION", location, SPELLINGS)
    if match["branch"] and match["kind"] != "nessie":
        raise errors.BadRequest("LOCATION", location, f"Only Nessie has branches. {SPELLINGS}")
    catalog_configuration(match["catalog"])
    return location


def list_tables_at(location: str, stores: Stores, settings: StoreSettings) -> list[str]:
    """The tables of a location with a star for the table; other locations are one table.

    Folders whose names begin with an underscore or a dot are left out, as in Spark.

    Raises:
        BadRequest: it has an unknown form, or names a catalog that is not configured.
        Unserveable, StoreError: the namespace or folder does not exist, or the store or catalog refuses it.
    """
    if not location.startswith(IN_CATALOGS):
        if not location.endswith("/*"):
            return [normalise_followed_location(location, settings)]
        return _list_table_folders(normalise_followed_location(location[:-2] or "/", settings), stores)
    before, star, branch = location.partition(".*")
    if not star or (branch and not branch.startswith("@")):
        return [normalise_followed_location(location, settings)]
    # Any name of a table gives the source of its namespace.
    source = make_source(normalise_followed_location(f"{before}.t{branch}", settings), stores, settings)
    return [f"{before}.{name}{branch}" for name in source.siblings()]


def read_table_name(location: str) -> str:
    """The default name of a table, `schema.table`: the last two folders, or namespace and table."""
    match = IN_CATALOG.fullmatch(location)
    if match is not None:
        *levels, table = match["table"].split(".")
        return f"{'_'.join(levels)}.{table}"
    folder = posixpath.dirname(posixpath.dirname(location)) if is_metadata_file(location) else location
    above, _, name = folder.rstrip("/").rpartition("/")
    return f"{above.rpartition('/')[2]}.{name}"


def _list_table_folders(location: str, stores: Stores) -> list[str]:
    """The folders in a folder that have a Delta log or Iceberg metadata."""
    root = location.rstrip("/")
    try:
        names = stores.folders(location)
    except errors.StoreMissing as error:
        raise errors.StoreMissing(location, "Give a folder that has tables in it.") from error
    folders = [f"{root}/{name}" for name in names if not name.startswith(("_", "."))]

    def has_table(folder: str) -> bool:
        return any(next(iter(stores.list(f"{folder}/{name}")), None) for name in (LOG, METADATA))

    with ThreadPoolExecutor(MAX_PARALLEL_READS) as pool:
        return list(compress(folders, pool.map(has_table, folders)))


def is_delta(location: str, stores: Stores) -> bool:
    """Whether the location has a Delta log; also for a Delta table with Iceberg metadata (UniForm)."""
    if location.startswith(IN_CATALOGS) or is_metadata_file(location):
        return False
    return next(iter(stores.list(f"{location.rstrip('/')}/{LOG}")), None) is not None


def make_source(location: str, stores: Stores, settings: StoreSettings) -> MetadataSource:
    match = IN_CATALOG.fullmatch(location)
    if match is None:
        is_file = is_metadata_file(location)
        return FixedMetadata(stores, location) if is_file else MetadataFolder(stores, location)
    identifier = tuple(match["table"].split("."))
    service = stores.services.of(str(catalog_service(location)))
    if match["kind"] == "nessie":
        return NessieTable(match["catalog"], identifier, match["branch"] or MAIN, service)
    return CatalogTable(match["catalog"], identifier, settings, service)


def catalog_service(location: str) -> str | None:
    """The service name of the catalog in a location; None for locations in storage."""
    match = IN_CATALOG.fullmatch(location)
    return None if match is None else f"{match['kind']}:{match['catalog']}"
