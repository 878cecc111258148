"""`lakeshare doctor`: checks what a run needs; changes and downloads nothing."""

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from urllib.parse import urlsplit

import sqlalchemy

from lakeshare_pipelines.backup.config import load_backups
from lakeshare_pipelines.backup.policies import Check, check_backup
from lakeshare_pipelines.contracts import load_contracts
from lakeshare_pipelines.errors import BackupError, ContractError, IcebergCatalogError, JavaError, NessieError
from lakeshare_pipelines.nessie.client import Nessie
from lakeshare_pipelines.nessie.server import ensure_nessie, key_path, nessie_status
from lakeshare_pipelines.settings import NESSIE, LakeSettings
from lakeshare_pipelines.spark import jars
from lakeshare_pipelines.spark.catalogs import NamedCatalog, translate_catalog_errors
from lakeshare_pipelines.spark.session import list_session_jars
from lakeshare_pipelines.spark.stores import list_warehouses
from lakeshare_server.errors import LakeshareError
from lakeshare_server.storage import Stores
from lakeshare_server.storage.stores import find_shortcoming

MIN_FREE_BYTES = 2_000_000_000
WEAKER = (
    "one table at a time: readers of the catalog may see the tables of a set change one after another, and new columns "
    "before the audit; recipients see whole, audited sets. Nessie has neither limit"
)
CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
PROXIES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY")


def examine(settings: LakeSettings) -> list[Check]:
    """Runs all checks, in the order in which a run needs what they check."""
    return [finding for check in CHECKS for finding in check(settings)]


def check_packages(_settings: LakeSettings) -> Iterator[Check]:
    """Compares the installed packages with the versions that lakeshare was tested with."""
    wrong = []
    for name, pinned in _required_packages():
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            found = "missing"
        if found == "missing" or pinned not in (None, found):
            wrong.append(f"{name} {found}" + (f" (wanted {pinned})" if pinned else ""))
    if wrong:
        remedy = "Install lakeshare[pipelines] again from requirements.lock"
        yield Check("packages", ", ".join(wrong), remedy)
    else:
        yield Check("packages", f"lakeshare {metadata.version('lakeshare')} and all it needs")


def check_java(settings: LakeSettings) -> Iterator[Check]:
    """Lists the Java for Spark and Nessie, and unsuitable installations."""
    for purpose, title in jars.TITLES.items():
        if purpose == "nessie" and settings.iceberg_catalog != NESSIE:
            continue
        try:
            java = jars.find_java(purpose, settings)
        except JavaError as error:
            yield Check(f"Java for {title}", error.reason, error.fix)
        else:
            detail = f"Java {java.version} in {java.home} ({java.origin})"
            yield Check(f"Java for {title}", detail)
    for candidate in jars.list_candidates(settings):
        if not any(candidate.serves(purpose) for purpose in jars.TITLES):
            reasons = "; ".join(dict.fromkeys(candidate.refusals.values()))
            yield Check("Java, passed over", f"{candidate.place} ({candidate.origin}): {reasons}")


def check_jars(settings: LakeSettings) -> Iterator[Check]:
    """Checks that the cache folder holds the pinned jars."""
    try:
        names = list_session_jars(settings)
    except (IcebergCatalogError, ContractError):
        return  # `check_iceberg_catalog` or `check_folders` reports it
    if settings.iceberg_catalog == NESSIE:
        names = (*names, jars.NESSIE_JAR)
    required = [jars.load_pinned_jars()[name] for name in names]
    missing = [jar for jar in required if not jars.is_whole(jar, jars.get_cached_path(settings, jar))]
    size_mb = sum(jar.size_bytes for jar in missing) / 1e6
    folder = settings.cache_dir / "jars"
    if not missing:
        yield Check("jars", f"{len(required)} of {len(required)} in {folder}, as in the lock")
        return
    lacking = ", ".join(jar.name for jar in missing)
    detail = f"{lacking} not in {folder}, or not whole ({size_mb:.0f} MB)"
    if not settings.offline:
        yield Check("jars", f"{detail}: the next run fetches them")
        return
    remedy = (
        f"Unset it for one run, or copy the `jars` folder of a machine that has them to {settings.cache_dir}"
    )
    yield Check("jars", f"{detail}, and LAKESHARE_OFFLINE is set", remedy)


def check_nessie(settings: LakeSettings) -> Iterator[Check]:
    """Checks that Nessie runs and accepts the writer's token, and that its key is private."""
    if settings.iceberg_catalog != NESSIE:
        return
    key = key_path(settings)
    if key.exists() and key.stat().st_mode & 0o077:
        yield Check("Nessie's key", f"{key} can be read by others", f"chmod 600 {key}")
    status = nessie_status(settings)
    if not status.is_running:
        if status.is_embedded:
            yield Check("Nessie", "does not run; the next run starts it")
        else:
            remedy = "Start it, or correct or unset LAKESHARE_NESSIE_URI"
            yield Check("Nessie", f"{status.uri} does not answer", remedy)
        return
    try:
        main = Nessie.connect(ensure_nessie(settings), "writer").reference("main")
    except NessieError as error:
        remedy = "Run `lakeshare down`, then again" if status.is_embedded else "Check LAKESHARE_NESSIE_TOKEN"
        yield Check("Nessie", str(error), remedy)
        return
    memory = f", {status.memory_bytes / 1e6:.0f} MB" if status.memory_bytes else ""
    process = f" (pid {status.pid}{memory})" if status.is_embedded else ""
    yield Check("Nessie", f"{status.uri}{process}, main at {main.hash[:12]}")


def check_folders(settings: LakeSettings) -> Iterator[Check]:
    """Checks that the state, warehouse, landing and cache folders can be written and have space."""
    yield _check_writable("state folder", "LAKESHARE_STATE_DIR", settings.state_dir)
    try:
        load_contracts(settings.contracts_dir)
        locations = list_warehouses(settings)
    except ContractError as error:
        yield Check("contracts", str(error), "Correct it; `lakeshare contract check` checks all")
        locations = (settings.lake_root,)
    for location in locations:
        yield _check_warehouse(settings, location)
    yield _check_landing(settings)
    # Offline it is only read, as that of an image: `check_jars` has found what is in it.
    if not settings.offline:
        yield _check_writable("cache folder", "LAKESHARE_CACHE_DIR", settings.cache_dir)
    free = shutil.disk_usage(_find_existing_parent(settings.state_dir)).free
    detail = f"{free / 1e9:.1f} GB free"
    if free < MIN_FREE_BYTES:
        detail += f", less than {MIN_FREE_BYTES / 1e9:.0f} GB"
        remedy = "Free some, or set LAKESHARE_STATE_DIR to another disk"
        yield Check("disk of the state folder", detail, remedy)
    else:
        yield Check("disk of the state folder", detail)


def _check_landing(settings: LakeSettings) -> Check:
    root = settings.landing_root
    if not root.startswith("/"):
        try:
            folders = Stores(settings.landing_stores).folders(root)
        except LakeshareError as error:
            remedy = "Check LAKESHARE_LANDING, its endpoint, and the rights of these credentials"
            return Check("landing", f"{root} cannot be listed: {error}".rstrip("."), remedy)
        return Check("landing", f"{root} can be listed and has folders of {len(folders)} sets")
    if settings.landing is not None and not Path(root).exists():
        detail = f"{root} does not exist: no delivery will ever be seen"
        return Check("landing folder", detail, "Make it, mount it, or correct LAKESHARE_LANDING")
    return _check_writable("landing folder", "LAKESHARE_LANDING", Path(root))


def check_iceberg_catalog(settings: LakeSettings) -> Iterator[Check]:
    """Checks that another catalog than Nessie responds, and lists what is weaker with it."""
    from pyiceberg.exceptions import NoSuchNamespaceError

    title = "Iceberg catalog"
    try:
        catalog = NamedCatalog.load(settings)
        if catalog is None:
            return
        named = f"{catalog.name} ({catalog.type}), "
        if catalog.type == "sql":
            # Opened by pyiceberg, it would get its tables.
            yield _probe_database(title, catalog.properties["uri"], "correct its uri", named)
        else:
            opened = catalog.open(settings, Stores(settings))
            with translate_catalog_errors(catalog.name):
                count = len(opened.list_namespaces())
            yield Check(title, f"{named}{catalog.address} responds, with {count} namespaces")
    except IcebergCatalogError as error:
        yield Check(title, f"{error.subject}: {error.reason}", error.fix)
        return
    except NoSuchNamespaceError:
        yield Check(title, f"{named}no namespaces (HTTP 404)", "Correct its uri, warehouse or prefix")
        return
    yield Check("publication in the catalog", WEAKER)


def check_database(settings: LakeSettings) -> Iterator[Check]:
    yield _probe_database("database", settings.catalog_url, "correct LAKESHARE_DATABASE_URL")


def _probe_database(name: str, address: str, remedy: str, named: str = "") -> Check:
    """Connects to a database; a SQLite file is not created."""
    try:
        url = sqlalchemy.make_url(address)
    except (sqlalchemy.exc.ArgumentError, ValueError):
        return Check(name, "its URL has no valid form, which may be its port", f"Start it, or {remedy}")
    shown = named + url.set(query={}).render_as_string(hide_password=True)
    if url.get_backend_name() == "sqlite" and url.database and not Path(url.database).exists():
        return Check(name, f"{shown} is made by the first run")
    try:
        engine = sqlalchemy.create_engine(url)
        try:
            with engine.connect() as connection:
                sqlalchemy.inspect(connection).get_table_names()  # SQLite reads its file no earlier
        finally:
            engine.dispose()
    except (sqlalchemy.exc.SQLAlchemyError, ImportError) as error:
        return Check(name, f"{shown}: {str(error).splitlines()[0]}", f"Start it, or {remedy}")
    return Check(name, f"{shown} answers")


def check_network(_settings: LakeSettings) -> Iterator[Check]:
    """Lists the proxy and certificates for downloads; sends nothing."""
    for name in CERTIFICATES:
        path = os.environ.get(name)
        if path and not Path(path).exists():
            yield Check("certificates", f"{name}={path} does not exist", f"Correct or unset {name}")
    for name in PROXIES:
        proxy = os.environ.get(name) or os.environ.get(name.lower())
        if not proxy:
            continue
        parts = urlsplit(proxy)
        if parts.scheme and parts.hostname:
            port = f":{parts.port}" if parts.port else ""
            detail = f"downloads go through {parts.scheme}://{parts.hostname}{port} ({name})"
            yield Check("proxy", detail)
        else:
            remedy = f"Set {name} to http://HOST:PORT, or unset it"
            yield Check("proxy", f"{name} is no URL", remedy)


def check_backups(settings: LakeSettings) -> Iterator[Check]:
    try:
        declared = load_backups(settings)
    except BackupError as error:
        yield Check("backups", f"{error.subject}: {error.reason}", error.fix)
        return
    for backup in declared:
        for check in check_backup(backup):
            yield replace(check, name=f"backup {backup.name}, {check.name}")


CHECKS: tuple[Callable[[LakeSettings], Iterator[Check]], ...] = (
    check_packages,
    check_java,
    check_jars,
    check_folders,
    check_database,
    check_nessie,
    check_iceberg_catalog,
    check_network,
    check_backups,
)


def _required_packages() -> Iterator[tuple[str, str | None]]:
    """Yields name and, where pinned, version of what lakeshare and its pipelines extra require."""
    for requirement in metadata.requires("lakeshare") or []:
        spec, _, marker = requirement.partition(";")
        if "extra" in marker and "pipelines" not in marker:
            continue
        found = re.match(r"([A-Za-z0-9._-]+)(?:\[[^]]*])?\s*(?:==([^,\s]+))?", spec)
        if found is not None:
            yield found[1], found[2]


def _check_writable(name: str, variable: str, folder: Path) -> Check:
    """Writes a temporary file: permission bits do not show read-only mounts and full disks."""
    nearest = _find_existing_parent(folder)
    try:
        with tempfile.NamedTemporaryFile(prefix=".lakeshare-doctor-", dir=nearest) as probe:
            probe.write(b"x")
            probe.flush()
    except OSError as error:
        return Check(name, f"{folder}: {error.strerror}", f"Correct it, or set {variable} to another folder")
    note = "" if nearest == folder else " (made by the first run)"
    return Check(name, f"{folder} can be written{note}")


def _check_warehouse(settings: LakeSettings, location: str) -> Check:
    if location.startswith("/"):
        return _check_writable("warehouse", "LAKESHARE_WAREHOUSE", Path(location))
    if lacking := find_shortcoming(Stores(settings), location):
        return Check("warehouse", lacking.what, lacking.remedy)
    return Check("warehouse", f"{location} can be read, written, listed and deleted, by one writer at a time")


def _find_existing_parent(folder: Path) -> Path:
    return next(path for path in (folder, *folder.parents) if path.exists())
