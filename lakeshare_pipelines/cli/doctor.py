"""`lakeshare doctor`: is everything here that a run needs, and what to do about each thing that is not.

Looks and asks, changes nothing and fetches nothing. A finding that the next run settles by itself is all right.
"""

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from urllib.parse import urlsplit

import sqlalchemy

from lakeshare_pipelines.backup.config import load_backups
from lakeshare_pipelines.backup.policy_checks import check_backup
from lakeshare_pipelines.errors import BackupError, JavaError, NessieError
from lakeshare_pipelines.nessie.client import Nessie
from lakeshare_pipelines.nessie.server import ensure_nessie, key_path, nessie_status
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.spark.jars import (
    NESSIE_JAR,
    SPARK_JARS,
    TITLES,
    Purpose,
    find_java,
    get_cached_path,
    is_whole,
    list_candidates,
    load_pinned_jars,
)

MIN_FREE_BYTES = 2_000_000_000
CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
PROXIES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY")


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at; `remedy` is empty when nothing is to be done."""

    name: str
    ok: bool
    detail: str
    remedy: str = ""


def examine(settings: LakeSettings) -> list[Finding]:
    """Everything a run needs, one finding each, in the order a run needs it."""
    return [finding for look in CHECKS for finding in look(settings)]


def check_packages(_settings: LakeSettings) -> Iterator[Finding]:
    """Whether the installed packages are the ones lakeshare was tested with."""
    wrong = []
    for name, wanted in _required_packages():
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            found = "missing"
        if found == "missing" or (wanted is not None and found != wanted):
            wrong.append(f"{name} {found}" + (f" (wanted {wanted})" if wanted else ""))
    if wrong:
        yield Finding(
            "packages", False, ", ".join(wrong), "Install lakeshare[pipelines] again from requirements.lock"
        )
    else:
        yield Finding("packages", True, f"lakeshare {metadata.version('lakeshare')} and all it needs")


def check_java(settings: LakeSettings) -> Iterator[Finding]:
    """Which Java Spark and Nessie get, and which were passed over."""
    for purpose, title in TITLES.items():
        yield _check_java_for(purpose, title, settings)
    for candidate in list_candidates(settings):
        if not any(candidate.serves(purpose) for purpose in TITLES):
            reasons = "; ".join(dict.fromkeys(candidate.refusals.values()))
            yield Finding("Java, passed over", True, f"{candidate.place} ({candidate.origin}): {reasons}")


def check_jars(settings: LakeSettings) -> Iterator[Finding]:
    """Whether the cache folder holds the pinned jars whole."""
    wanted = [load_pinned_jars()[name] for name in (*SPARK_JARS, NESSIE_JAR)]
    missing = [jar for jar in wanted if not is_whole(jar, get_cached_path(settings, jar))]
    size_mb = sum(jar.size_bytes for jar in missing) / 1e6
    folder = settings.cache_dir / "jars"
    if not missing:
        yield Finding("jars", True, f"{len(wanted)} of {len(wanted)} in {folder}, as the lock says")
        return
    names = ", ".join(jar.name for jar in missing)
    detail = f"{names} not in {folder}, or not whole ({size_mb:.0f} MB)"
    if settings.offline:
        yield Finding(
            "jars",
            False,
            f"{detail}, and LAKESHARE_OFFLINE is set",
            f"Unset it for one run, or copy the `jars` folder of a machine that has them to {settings.cache_dir}",
        )
    else:
        yield Finding("jars", True, f"{detail}: the next run fetches them")


def check_nessie(settings: LakeSettings) -> Iterator[Finding]:
    """Whether Nessie runs and lets us in, and whether its key is kept from others."""
    key = key_path(settings)
    if key.exists() and key.stat().st_mode & 0o077:
        yield Finding("Nessie's key", False, f"{key} can be read by others", f"chmod 600 {key}")
    status = nessie_status(settings)
    if not status.is_running:
        if status.is_embedded:
            yield Finding("Nessie", True, "does not run; the next run starts it")
        else:
            yield Finding(
                "Nessie",
                False,
                f"{status.uri} does not answer",
                "Start it, or correct or unset LAKESHARE_NESSIE_URI",
            )
        return
    try:
        main = Nessie.connect(ensure_nessie(settings), "writer").reference("main")
    except NessieError as error:
        remedy = "Run `lakeshare down`, then again" if status.is_embedded else "Check LAKESHARE_NESSIE_TOKEN"
        yield Finding("Nessie", False, str(error), remedy)
        return
    memory = f", {status.memory_bytes / 1e6:.0f} MB" if status.memory_bytes else ""
    process = f" (pid {status.pid}{memory})" if status.is_embedded else ""
    yield Finding("Nessie", True, f"{status.uri}{process}, main at {main.hash[:12]}")


def check_folders(settings: LakeSettings) -> Iterator[Finding]:
    """Whether the state, warehouse, landing and cache folders can be written and have room."""
    yield _check_writable("state folder", "LAKESHARE_STATE_DIR", settings.state_dir)
    yield _check_writable("warehouse", "LAKESHARE_WAREHOUSE_DIR", settings.warehouse)
    yield _check_landing(settings)
    yield _check_writable("cache folder", "LAKESHARE_CACHE_DIR", settings.cache_dir)
    yield _check_space("disk of the state folder", "LAKESHARE_STATE_DIR", settings.state_dir)


def check_database(settings: LakeSettings) -> Iterator[Finding]:
    """Whether the catalog's database answers."""
    url = sqlalchemy.make_url(settings.catalog_url)
    shown = url.render_as_string(hide_password=True)
    if url.get_backend_name() == "sqlite" and url.database and not Path(url.database).exists():
        yield Finding("database", True, f"{shown} is made by the first run")
        return
    engine = sqlalchemy.create_engine(url)
    try:
        with engine.connect() as connection:
            connection.execute(sqlalchemy.text("SELECT 1"))
    except sqlalchemy.exc.SQLAlchemyError as error:
        reason = str(error).splitlines()[0]
        yield Finding("database", False, f"{shown}: {reason}", "Start it, or correct LAKESHARE_DATABASE_URL")
    else:
        yield Finding("database", True, f"{shown} answers")
    finally:
        engine.dispose()


def check_network(_settings: LakeSettings) -> Iterator[Finding]:
    """Which proxy and certificates downloads will use; nothing is sent."""
    for name in CERTIFICATES:
        path = os.environ.get(name)
        if path and not Path(path).exists():
            yield Finding("certificates", False, f"{name}={path} does not exist", f"Correct or unset {name}")
    for name in PROXIES:
        proxy = os.environ.get(name) or os.environ.get(name.lower())
        if proxy:
            yield _check_proxy(name, proxy)


def check_backups(settings: LakeSettings) -> Iterator[Finding]:
    """Whether the declared backups can be read, and their places are as they need them."""
    try:
        declared = load_backups(settings)
    except BackupError as error:
        yield Finding("backups", False, f"{error.subject}: {error.reason}", error.fix)
        return
    for backup in declared:
        for check in check_backup(backup):
            yield Finding(f"backup {backup.name}, {check.name}", check.ok, check.detail, check.remedy)


CHECKS: tuple[Callable[[LakeSettings], Iterator[Finding]], ...] = (
    check_packages,
    check_java,
    check_jars,
    check_folders,
    check_database,
    check_nessie,
    check_network,
    check_backups,
)


def _required_packages() -> Iterator[tuple[str, str | None]]:
    """Name and, where pinned, version of what lakeshare and its pipelines extra require."""
    for requirement in metadata.requires("lakeshare") or []:
        spec, _, marker = requirement.partition(";")
        if "extra" in marker and "pipelines" not in marker:
            continue
        found = re.match(r"([A-Za-z0-9._-]+)(?:\[[^]]*])?\s*(?:==([^,\s]+))?", spec)
        if found is not None:
            yield found[1], found[2]


def _check_java_for(purpose: Purpose, title: str, settings: LakeSettings) -> Finding:
    try:
        java = find_java(purpose, settings)
    except JavaError as error:
        return Finding(f"Java for {title}", False, error.reason, error.fix)
    return Finding(f"Java for {title}", True, f"Java {java.version} in {java.home} ({java.origin})")


def _check_landing(settings: LakeSettings) -> Finding:
    if settings.landing_dir is not None and not settings.landing_dir.exists():
        return Finding(
            "landing folder",
            False,
            f"{settings.landing_dir} does not exist: no delivery will ever be seen",
            "Make it, mount it, or correct LAKESHARE_LANDING_DIR",
        )
    return _check_writable("landing folder", "LAKESHARE_LANDING_DIR", settings.landing)


def _check_writable(name: str, variable: str, folder: Path) -> Finding:
    """Tried, not asked: permissions lie on read-only mounts and full disks."""
    nearest = _find_existing_parent(folder)
    try:
        with tempfile.NamedTemporaryFile(prefix=".lakeshare-doctor-", dir=nearest) as probe:
            probe.write(b"x")
            probe.flush()
    except OSError as error:
        return Finding(name, False, f"{folder}: {error.strerror}", f"Correct it, or set {variable} elsewhere")
    note = "" if nearest == folder else " (made by the first run)"
    return Finding(name, True, f"{folder} can be written{note}")


def _check_space(name: str, variable: str, folder: Path) -> Finding:
    free = shutil.disk_usage(_find_existing_parent(folder)).free
    detail = f"{free / 1e9:.1f} GB free"
    if free < MIN_FREE_BYTES:
        wanted = f"{MIN_FREE_BYTES / 1e9:.0f} GB"
        return Finding(
            name, False, f"{detail}, less than {wanted}", f"Free some, or set {variable} to another disk"
        )
    return Finding(name, True, detail)


def _find_existing_parent(folder: Path) -> Path:
    return next(place for place in (folder, *folder.parents) if place.exists())


def _check_proxy(name: str, proxy: str) -> Finding:
    parts = urlsplit(proxy)
    if not parts.scheme or not parts.hostname:
        return Finding("proxy", False, f"{name} is no URL", f"Set {name} to http://HOST:PORT, or unset it")
    port = f":{parts.port}" if parts.port else ""
    return Finding("proxy", True, f"downloads go through {parts.scheme}://{parts.hostname}{port} ({name})")
