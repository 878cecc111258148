"""Where a followed Iceberg table's current metadata file is told: what each kind of place answers."""

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast
from urllib.parse import quote

import httpx

from lakeshare_server.catalog.ledger import IN_CATALOGS
from lakeshare_server.errors import (
    BadRequest,
    LakeshareError,
    StoreDenied,
    StoreMissing,
    TableFilesMissing,
    Unavailable,
    Unserveable,
)
from lakeshare_server.outbound import Service
from lakeshare_server.settings import StoreSettings
from lakeshare_server.storage import StoredObject, Stores, normalise_location
from lakeshare_server.tables.delta.log import LOG

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog


@dataclass(frozen=True)
class Pointer:
    """The metadata file that is current now; `mark` changes when the file at its place becomes another one.

    `commit` is the Nessie commit that was looked at, None of all other sources.
    """

    metadata_location: str
    mark: str
    commit: str | None = None


@dataclass(frozen=True)
class BranchState:
    """A state that a table was in on a Nessie branch: when, by which commit, and what that commit said of it."""

    commit: str
    at_ms: int
    metadata_location: str
    snapshot_id: int


class MetadataSource(Protocol):
    """One table's place. Errors are for the operator: they name places and catalogs.

    Everything raises Unserveable, StoreError or BadRequest for what lasts, Unavailable for what passes.
    """

    @property
    def root(self) -> str | None:
        """The folder that the table must say it is in; None where the source tells no folder."""
        ...

    def current(self, known: Pointer | None) -> Pointer:
        """The current metadata file; `known` is what the last look found, and makes this one cheaper."""
        ...

    def states_since(self, commit: str | None, until: Pointer) -> Sequence[BranchState] | None:
        """The states after a commit, oldest first; None where the metadata's own snapshot log tells them."""
        ...


METADATA = "metadata"
HINT = "version-hint.text"
ENDINGS = (".metadata.json", ".gz.metadata.json")
# Writers of the first years put the codec behind.
OLD_ENDING = ".metadata.json.gz"
# Some catalogs take times in nanoseconds for numbers.
OF_HADOOP = re.compile(r"v([0-9]{1,20})(?:\.gz)?\.metadata\.json(?:\.gz)?")
OF_CATALOG = re.compile(r"([0-9]{1,20})-[\w-]{36}(?:\.gz)?\.metadata\.json(?:\.gz)?")
OF_HINT = re.compile(r"[\w.-]{1,250}")
# Names of metadata files without their endings.
STEM = re.compile(r"v[0-9]{1,20}|[0-9]{1,20}-[\w-]{36}")
# A hint that has a slash names a place.
PLACE_IN_HINT = re.compile(r"[!-~]{0,1000}/[!-~]{0,1000}")
# So many files are named in a refusal.
NAMED = 5
# Higher numbers are not in the order of their names, or followed by numbers that are not.
IN_ORDER_OF_NAMES = 90_000
# A catalog that takes over a table gives its first files the lowest numbers.
FIRST_OF_CATALOG = "0"
BEHIND_FIRST_OF_CATALOG = "0001"


def is_metadata_file(location: str) -> bool:
    """Whether a location is of one metadata file, not of a folder."""
    return location.endswith((*ENDINGS, OLD_ENDING))


class FixedMetadata:
    """One metadata file."""

    root: str | None = None

    def __init__(self, stores: Stores, location: str) -> None:
        self._stores, self._location = stores, location

    def current(self, known: Pointer | None) -> Pointer:
        """The file as it is now."""
        found = self._stores.head(self._location)
        if found is None:
            raise StoreMissing(self._location)
        return _pointer(found)

    def states_since(self, commit: str | None, until: Pointer) -> Sequence[BranchState] | None:
        """None: the file tells them."""
        return None


class MetadataFolder:
    """The `metadata` folder of a table."""

    def __init__(self, stores: Stores, root: str) -> None:
        self._stores = stores
        self.root: str | None = root.rstrip("/")
        self._folder = f"{self.root}/{METADATA}"
        # The number in the hint from which the last look came to its file.
        self._hinted: int | None = None

    def current(self, known: Pointer | None) -> Pointer:
        """The newest metadata file.

        Raises:
            TableFilesMissing: there is none.
            Unserveable: it cannot be told which one it is.
        """
        hinted, self._hinted = self._hinted, None
        found = self._found(known, hinted)
        if found is None:
            raise TableFilesMissing(str(self.root), "there is no Iceberg metadata in its folder")
        return _pointer(found)

    def states_since(self, commit: str | None, until: Pointer) -> Sequence[BranchState] | None:
        """None: the metadata tells them."""
        return None

    def _found(self, known: Pointer | None, hinted_before: int | None) -> StoredObject | None:
        hint = self._hint()
        number = int(hint) if hint is not None and hint.isdigit() else None
        if hint is not None and number is None and (named := self._named(hint)) is not None:
            return named
        kept = None if known is None else self._kept(known)
        if number is not None:
            found = self._newest_of_hadoop(number, kept if number == hinted_before else None)
            if found is not None:
                self._require_no_catalog(is_first_look=kept is None or hinted_before is None)
                self._hinted = number
                return found
        return self._listed(0 if kept is None else self._number_in_order(kept), number)

    def _hint(self) -> str | None:
        """What the hint says: a number, or the name of a file with or without its ending.

        Raises:
            Unserveable: it names a place.
        """
        try:
            hint = self._stores.read(f"{self._folder}/{HINT}").strip()
        except StoreMissing:
            return None
        text = hint.decode("ascii", "replace")
        if PLACE_IN_HINT.fullmatch(text):
            raise self._unclear(f"a hint that names {text}, which is no file of its folder")
        return text if OF_HINT.fullmatch(text) else None

    def _named(self, hint: str) -> StoredObject | None:
        """The file that the hint names; None when it names none.

        Raises:
            Unserveable: it is not there.
        """
        is_whole = is_metadata_file(hint)
        found = self._stores.head(f"{self._folder}/{hint}") if is_whole else self._with_ending(hint)
        if found is None and (is_whole or STEM.fullmatch(hint)):
            raise self._unclear(f"a hint that names {hint}, which is not there")
        return found

    def _kept(self, known: Pointer) -> StoredObject | None:
        """The file of an earlier look; None when it is not what it was."""
        here = self._stores.head(known.metadata_location)
        return here if here is not None and _pointer(here) == known else None

    def _number_in_order(self, file: StoredObject) -> int:
        """The number of a file whose followers all have names behind its own; 0 for other files."""
        number = self._number(file, OF_CATALOG)
        return number if number < IN_ORDER_OF_NAMES else 0

    def _number(self, file: StoredObject, of_kind: re.Pattern[str]) -> int:
        """The number in a file's name; 0 where the name is of another kind."""
        found = of_kind.fullmatch(self._name(file.location))
        return 0 if found is None else int(found[1])

    def _newest_of_hadoop(self, number: int, kept: StoredObject | None) -> StoredObject | None:
        """The file of this number or of the last of those that follow it without a gap: hints may lag behind.

        `kept` is one of them that the same hint has led to before.
        """
        newest = None
        if kept is not None:
            newest, number = kept, self._number(kept, OF_HADOOP) + 1
        while (found := self._with_ending(f"v{number}")) is not None:
            newest, number = found, number + 1
        return newest

    def _with_ending(self, stem: str) -> StoredObject | None:
        """The metadata file of this name without an ending, as Iceberg's Java classes look for it."""
        names = (f"{self._folder}/{stem}{ending}" for ending in (*ENDINGS, OLD_ENDING))
        return next((found for name in names if (found := self._head(name)) is not None), None)

    def _require_no_catalog(self, *, is_first_look: bool) -> None:
        """Refuse a hint's file where a catalog writes, too: what takes over a table leaves its old hint behind.

        Later looks go through the first names only.
        """
        after = f"{self._folder}/{FIRST_OF_CATALOG}"
        for file in self._stores.list(self._folder, after):
            name = self._name(file.location)
            if name > BEHIND_FIRST_OF_CATALOG and not is_first_look:
                break
            if OF_CATALOG.fullmatch(name):
                raise self._unclear(f"a hint that gives a number, and metadata files of a catalog ({name})")

    def _head(self, location: str) -> StoredObject | None:
        """The file at a location; None when there is none."""
        try:
            return self._stores.head(location)
        except StoreDenied:
            # Stores that know Iceberg (SeaweedFS's table buckets) refuse names that they would not write.
            folder, _, name = location.rpartition("/")
            after = f"{folder}/{name.partition('.')[0]}."
            if any(file.location == location for file in self._stores.list(folder, after)):
                raise
            return None

    def _listed(self, from_number: int, hinted: int | None = None) -> StoredObject | None:
        numbered: list[tuple[int, bool, StoredObject]] = []
        others: list[str] = []
        for name, file in self._metadata_files(from_number):
            of_hadoop, of_catalog = OF_HADOOP.fullmatch(name), OF_CATALOG.fullmatch(name)
            found = of_hadoop or of_catalog
            if found is None:
                others.append(name)
            else:
                numbered.append((int(found[1]), of_hadoop is not None, file))
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

    def _metadata_files(self, from_number: int) -> Iterator[tuple[str, StoredObject]]:
        """Those of any name, less those of lower numbers."""
        after = f"{self._folder}/{from_number:05d}-" if from_number else None
        for file in self._stores.list(self._folder, after):
            name = self._name(file.location)
            # Checksums of Hadoop's file system are hidden files, which are nobody's metadata.
            if is_metadata_file(name) and "/" not in name and not name.startswith("."):
                yield name, file

    def _name(self, location: str) -> str:
        return location[len(self._stores.place(f"{self._folder}/").location) :]

    def _unclear(self, what: str) -> Unserveable:
        return Unserveable(
            f"{self.root} has {what}, so its newest state is not known.",
            "Follow the table through its catalog (iceberg:CATALOG/NAMESPACE.TABLE), or one metadata file of it.",
        )


def _pointer(file: StoredObject) -> Pointer:
    return Pointer(file.location, f"{file.etag or file.modified_ms} {file.size_bytes}")


REFUSED = ("AccessDeniedException", "InvalidSignatureException", "UnrecognizedClientException")
GLUE_RETRIES = "glue.max-retries"
CONFIGURE = (
    "Name it in .pyiceberg.yaml or by PYICEBERG_CATALOG__{variable}__URI and __TYPE, for the server, too."
)


class CatalogTable:
    """One table of a catalog."""

    root: str | None = None

    def __init__(
        self, name: str, identifier: tuple[str, ...], settings: StoreSettings, service: Service
    ) -> None:
        self._name, self._identifier, self._settings = name, identifier, settings
        self._service = service
        self._opened: Catalog | None = None

    def current(self, known: Pointer | None) -> Pointer:
        """The metadata file that the catalog names.

        Raises:
            BadRequest: the catalog is not configured, or not as it has to be.
            Unserveable: it has no such table, or refuses us.
            Unavailable: it does not answer.
        """
        location = self._service.call(self._current_location)
        return Pointer(location, location)

    def states_since(self, commit: str | None, until: Pointer) -> Sequence[BranchState] | None:
        """None: the metadata tells them."""
        return None

    def _metadata_location(self) -> str:
        opened = self._opened = self._opened or self._open()
        # Glue names the file in the table's parameters; pyiceberg would go on and read it.
        glue = getattr(opened, "glue", None)
        if glue is not None:
            return self._told_by_glue(glue)
        location = opened.load_table(self._identifier).metadata_location
        if not location:
            raise self._lasting("has no metadata file")
        return location

    def _told_by_glue(self, glue: Any) -> str:
        from pyiceberg.exceptions import NoSuchTableError

        *namespace, table = self._identifier
        try:
            found = glue.get_table(DatabaseName=".".join(namespace), Name=table)["Table"]
        except glue.exceptions.EntityNotFoundException as error:
            raise NoSuchTableError(".".join(self._identifier)) from error
        location: str | None = found.get("Parameters", {}).get("metadata_location")
        if not location:
            raise self._lasting("is no Iceberg table")
        return location

    def _open(self) -> "Catalog":
        from pyiceberg.catalog import load_catalog

        properties = {**_usual(self._settings), **catalog_configuration(self._name)}
        # Botocore wants a number, and variables of the environment are texts.
        properties[GLUE_RETRIES] = int(properties[GLUE_RETRIES])
        return load_catalog(self._name, **properties)

    def _current_location(self) -> str:
        try:
            return self._metadata_location()
        except Exception as error:  # every catalog has errors of its own, of which only the kind is told
            raise self._told(error) from error

    def _told(self, error: Exception) -> LakeshareError:
        from pyiceberg import exceptions

        if isinstance(error, LakeshareError):
            return error
        if isinstance(error, exceptions.NoSuchTableError | exceptions.NoSuchNamespaceError):
            return self._lasting("is not in its catalog")
        # A connection that is made anew may do what the old one could not.
        self._opened = None
        refusals = exceptions.ForbiddenError, exceptions.UnauthorizedError, exceptions.OAuthError
        if isinstance(error, refusals) or _code(error) in REFUSED:
            return self._lasting(f"is refused to our credentials ({type(error).__name__} {_code(error)})")
        if isinstance(error, exceptions.NotInstalledError):
            return BadRequest("LOCATION", f"iceberg:{self._name}", f"{error}.")
        # The words of others may show what they were given: passwords, too.
        if isinstance(error, ValueError | TypeError):
            hint = (
                f"pyiceberg cannot use what is configured ({type(error).__name__}). {_configure(self._name)}"
            )
            return BadRequest("LOCATION", f"iceberg:{self._name}", hint)
        return self._passing(f"{type(error).__name__} {_code(error)}".rstrip())

    def _lasting(self, what: str) -> Unserveable:
        # All of the place in one word, which recipients are not told.
        return Unserveable(
            f"iceberg:{self._name}/{'.'.join(self._identifier)} {what}.",
            "Check the table's name, and the catalog's configuration where the server runs.",
        )

    def _passing(self, why: str) -> Unavailable:
        return Unavailable(
            f"the Iceberg catalog {self._name} cannot be asked ({why})",
            f"Try again. {_configure(self._name)}",
        )


class CatalogNamespace(CatalogTable):
    """A namespace of a catalog, for the names of its tables."""

    def __init__(
        self, name: str, namespace: tuple[str, ...], settings: StoreSettings, service: Service
    ) -> None:
        super().__init__(name, (*namespace, "*"), settings, service)

    def tables(self) -> list[str]:
        """The names of the tables, without those of namespaces inside it.

        Raises:
            BadRequest, Unserveable, Unavailable: as `CatalogTable.current`.
        """
        return sorted(self._service.call(self._list_names))

    def _list_names(self) -> list[str]:
        try:
            opened = self._opened = self._opened or self._open()
            return [identifier[-1] for identifier in opened.list_tables(self._identifier[:-1])]
        except Exception as error:  # every catalog has errors of its own, of which only the kind is told
            raise self._told(error) from error


def catalog_configuration(name: str) -> dict[str, Any]:
    """What pyiceberg's configuration says of a catalog now.

    Raises:
        BadRequest: it is not configured.
    """
    from pyiceberg.utils.config import Config

    config = Config()
    try:
        found = config.get_catalog_config(name)
        known = ", ".join(sorted(config.get_known_catalogs())) or "none"
    except ValueError as error:
        raise BadRequest("LOCATION", name, f"pyiceberg's configuration cannot be used: {error}") from error
    if found is None:
        hint = f"No Iceberg catalog of this name is configured; known are: {known}. {_configure(name)}"
        raise BadRequest("LOCATION", name, hint)
    return cast(dict[str, Any], dict(found))


def _usual(settings: StoreSettings) -> Mapping[str, str]:
    """What the server's own settings say for catalogs that do not say it themselves."""
    configured = {"s3.endpoint": settings.s3_endpoint, "s3.region": settings.s3_region}
    # Ten attempts, pyiceberg's own number, take twenty seconds.
    return {GLUE_RETRIES: "2"} | {name: value for name, value in configured.items() if value}


def _configure(name: str) -> str:
    return CONFIGURE.format(variable=name.upper().replace("-", "_"))


def _code(error: Exception) -> str:
    """The code in an error of AWS, which has one class for all."""
    response = getattr(error, "response", None)
    return str(response.get("Error", {}).get("Code", "")) if isinstance(response, dict) else ""


ANSWER_S = 20
PAGE = 200
# A look back over more commits than these is given up: what they showed is not told.
MAX_COMMITS = 10_000
ICEBERG = "ICEBERG_TABLE"
NESSIE_REFUSED = (401, 403)


class NessieTable:
    """One table of a Nessie catalog, on one branch."""

    root: str | None = None

    def __init__(self, name: str, identifier: tuple[str, ...], branch: str, service: Service) -> None:
        self._name, self._identifier, self._branch = name, identifier, branch
        self._service = service

    def current(self, known: Pointer | None) -> Pointer:
        """The metadata file that the branch's head has.

        Raises:
            BadRequest: the catalog is not configured.
            Unserveable: the branch or the table is not there, is no Iceberg table, or the catalog refuses us.
            Unavailable: it does not answer.
        """
        key = quote(".".join(self._identifier), safe="")
        reference = self._get(f"/trees/{quote(self._branch, safe='')}/contents/{key}", {})
        with self._understood():
            content, commit = reference["content"], str(reference["effectiveReference"]["hash"])
            if content["type"] != ICEBERG:
                raise self._refusal(f"is no Iceberg table but a {content['type']}")
            location = str(content["metadataLocation"])
            return Pointer(location, location, commit)

    def states_since(self, commit: str | None, until: Pointer) -> Sequence[BranchState] | None:
        """What the branch showed after a commit; nothing if the commit is none of the branch's any more."""
        if commit is None or commit == until.commit:
            return ()
        found: list[BranchState] = []
        with self._understood():
            for count, entry in enumerate(self._commits(str(until.commit))):
                if entry["commitMeta"]["hash"] == commit:
                    return found[::-1]
                if count >= MAX_COMMITS:
                    break
                found += self._states_of(entry)
        return ()

    def _commits(self, until: str) -> Iterator[dict[str, Any]]:
        """The branch's commits with what they did, the newest first."""
        path = f"/trees/{quote(self._branch, safe='')}@{until}/history"
        parameters = {"fetch": "ALL", "max-records": str(PAGE)}
        while True:
            page = self._get(path, parameters)
            yield from page["logEntries"]
            if not page.get("hasMore"):
                return
            parameters = {**parameters, "page-token": page["token"]}

    def _states_of(self, entry: dict[str, Any]) -> Iterator[BranchState]:
        meta = entry["commitMeta"]
        for operation in entry.get("operations") or ():
            content = operation.get("content") or {}
            is_ours = operation["key"]["elements"] == list(self._identifier)
            if is_ours and operation["type"] == "PUT" and content.get("type") == ICEBERG:
                at = datetime.fromisoformat(meta["commitTime"])
                yield BranchState(
                    meta["hash"],
                    int(at.timestamp() * 1000),
                    content["metadataLocation"],
                    int(content["snapshotId"]),
                )

    def _get(self, path: str, parameters: dict[str, str]) -> dict[str, Any]:
        configured = catalog_configuration(self._name)
        uri = str(configured.get("uri", "")).rstrip("/")
        if not uri.startswith(("http://", "https://")):
            hint = "Its uri in pyiceberg's configuration must be that of Nessie's API, like http://host:19120/api/v2."
            raise BadRequest("LOCATION", self._name, hint)
        token = configured.get("token")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return self._service.call(lambda: self._answer(uri + path, headers, parameters))

    def _answer(self, url: str, headers: dict[str, str], parameters: dict[str, str]) -> dict[str, Any]:
        try:
            with httpx.Client(timeout=ANSWER_S, headers=headers) as client:
                answer = client.get(url, params=parameters)
            if answer.is_success:
                body: dict[str, Any] = answer.json()
                return body
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            raise self._unreachable(type(error).__name__) from error
        raise self._refused(answer.status_code)

    @contextmanager
    def _understood(self) -> Iterator[None]:
        try:
            yield
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise self._unreachable(f"it answers otherwise than Nessie, {type(error).__name__}") from error

    def _refused(self, status: int) -> LakeshareError:
        if status in NESSIE_REFUSED:
            return self._refusal(f"is refused to our token ({status})")
        if status == httpx.codes.NOT_FOUND:
            return self._refusal("is not there")
        return self._unreachable(f"status {status}")

    def _refusal(self, what: str) -> Unserveable:
        # All of the place in one word, which recipients are not told.
        return Unserveable(
            f"nessie:{self._name}/{'.'.join(self._identifier)}@{self._branch} {what}.",
            "Check table and branch, and uri and token in the catalog's configuration where the server runs.",
        )

    def _unreachable(self, why: str) -> Unavailable:
        return Unavailable(
            f"the Nessie catalog {self._name} cannot be asked ({why})",
            "Try again; its uri must be that of the API, like http://host:19120/api/v2.",
        )


class NessieNamespace(NessieTable):
    """A namespace of a Nessie catalog on one branch, for the names of its Iceberg tables."""

    def __init__(self, name: str, namespace: tuple[str, ...], branch: str, service: Service) -> None:
        super().__init__(name, (*namespace, "*"), branch, service)

    def tables(self) -> list[str]:
        """The names of the tables, without those of namespaces inside it.

        Raises:
            BadRequest, Unserveable, Unavailable: as `NessieTable.current`.
        """
        path = f"/trees/{quote(self._branch, safe='')}/entries"
        found: list[str] = []
        parameters = {"max-records": str(PAGE)}
        while True:
            page = self._get(path, parameters)
            with self._understood():
                for entry in page["entries"]:
                    *namespace, table = entry["name"]["elements"]
                    if entry["type"] == ICEBERG and tuple(namespace) == self._identifier[:-1]:
                        found.append(table)
                if not page.get("hasMore"):
                    return sorted(found)
                parameters = {**parameters, "page-token": page["token"]}


IN_CATALOG = re.compile(
    r"(?P<kind>iceberg|nessie):(?P<catalog>[A-Za-z0-9_-]+)/(?P<table>[^/@\s.]+(?:\.[^/@\s.]+)+)(?:@(?P<branch>[^\s@]+))?"
)
SPELLINGS = (
    "Spell it iceberg:CATALOG/NAMESPACE.TABLE or nessie:CATALOG/NAMESPACE.TABLE@BRANCH, where CATALOG is one of "
    "pyiceberg's configuration."
)
MAIN = "main"
# Folders that are looked into at a time.
READERS = 16


def normalise_followed_location(location: str, settings: StoreSettings) -> str:
    """The location as it is kept: absolute, in our own spelling; nothing is read but pyiceberg's configuration.

    Raises:
        BadRequest: it is of no known form, or names a catalog that is not configured.
    """
    if not location.startswith(IN_CATALOGS):
        is_path = not re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", location)
        return normalise_location(
            str(Path(location).expanduser().absolute()) if is_path else location, settings.azure_account
        )
    found = IN_CATALOG.fullmatch(location)
    if found is None:
        raise BadRequest("LOCATION", location, SPELLINGS)
    if found["branch"] and found["kind"] != "nessie":
        raise BadRequest("LOCATION", location, f"Only Nessie has branches. {SPELLINGS}")
    catalog_configuration(found["catalog"])
    return location


def list_tables_at(location: str, stores: Stores, settings: StoreSettings) -> list[str]:
    """The tables that a location with a star for the table stands for; every other location is one table.

    Folders whose names begin with an underscore or a dot hold no tables of their own, as in Spark.

    Raises:
        BadRequest: it is of no known form, or names a catalog that is not configured.
        Unserveable, StoreError: the namespace or the folder is not there, or its store or catalog refuses us.
        Unavailable: the store or the catalog does not answer.
    """
    if not location.startswith(IN_CATALOGS):
        if not location.endswith("/*"):
            return [normalise_followed_location(location, settings)]
        return _folders(normalise_followed_location(location[:-2] or "/", settings), stores)
    before, star, branch = location.partition(".*")
    if not star or (branch and not branch.startswith("@")):
        return [normalise_followed_location(location, settings)]
    # A table of any name has the form that is judged.
    normalise_followed_location(f"{before}.t{branch}", settings)
    kind, _, path = before.partition(":")
    catalog, _, namespace = path.partition("/")
    levels = tuple(namespace.split("."))
    service = stores.services.of(str(catalog_service(f"{before}.t{branch}")))
    if kind == "nessie":
        names = NessieNamespace(catalog, levels, branch[1:] or MAIN, service).tables()
    else:
        names = CatalogNamespace(catalog, levels, settings, service).tables()
    return [f"{before}.{name}{branch}" for name in names]


def read_table_name(location: str) -> str:
    """The name of a table as its location has it, `schema.table`: the last two folders, or namespace and table."""
    found = IN_CATALOG.fullmatch(location)
    if found is not None:
        *levels, table = found["table"].split(".")
        return f"{'_'.join(levels)}.{table}"
    folder = posixpath.dirname(posixpath.dirname(location)) if is_metadata_file(location) else location
    above, _, name = folder.rstrip("/").rpartition("/")
    return f"{above.rpartition('/')[2]}.{name}"


def _folders(location: str, stores: Stores) -> list[str]:
    """The folders in a folder that hold a Delta log or Iceberg metadata."""
    root = location.rstrip("/")
    folders = [f"{root}/{name}" for name in stores.folders(location) if not name.startswith(("_", "."))]
    with ThreadPoolExecutor(READERS) as pool:
        held = list(pool.map(lambda folder: _holds_table(folder, stores), folders))
    return [folder for folder, is_table in zip(folders, held, strict=True) if is_table]


def _holds_table(folder: str, stores: Stores) -> bool:
    return any(next(iter(stores.list(f"{folder}/{name}")), None) for name in (LOG, METADATA))


def is_delta(location: str, stores: Stores) -> bool:
    """Whether a Delta log is there; a table that is Iceberg's as well (UniForm) is taken for what writes it."""
    if location.startswith(IN_CATALOGS) or is_metadata_file(location):
        return False
    return next(iter(stores.list(f"{location.rstrip('/')}/{LOG}")), None) is not None


def make_source(location: str, stores: Stores, settings: StoreSettings) -> MetadataSource:
    """Where the current metadata of the Iceberg table at a location is told.

    Raises:
        BadRequest: it is of no known form.
    """
    found = IN_CATALOG.fullmatch(location)
    if found is None:
        is_file = is_metadata_file(location)
        return FixedMetadata(stores, location) if is_file else MetadataFolder(stores, location)
    identifier = tuple(found["table"].split("."))
    service = stores.services.of(str(catalog_service(location)))
    if found["kind"] == "nessie":
        return NessieTable(found["catalog"], identifier, found["branch"] or MAIN, service)
    return CatalogTable(found["catalog"], identifier, settings, service)


def catalog_service(location: str) -> str | None:
    """The catalog of a location, by its name as a service; None where the location is in storage."""
    found = IN_CATALOG.fullmatch(location)
    return None if found is None else f"{found['kind']}:{found['catalog']}"
