"""Files outside of a table's own store: a log may name any file, and whoever writes the log is not the operator.

Bytes are read, and URLs signed, with the server's own rights. So a table gets at files of its own store, and of those
that the operator names; never from a store at the server's disk. The own store of a table on that disk is the folder
that holds the table's folder: the disk has other things on it.
"""

import os
import posixpath
from collections.abc import Collection
from functools import lru_cache
from pathlib import Path

from lakeshare_server.catalog.database import database_file
from lakeshare_server.errors import BadRequest, Unserveable
from lakeshare_server.settings import ServerSettings
from lakeshare_server.stores import Place, place_of
from lakeshare_server.stores.locations import LOCAL

# What of the state folder is nobody's business; tables may lie there, too.
OUR_OWN = (
    "signing.key",
    "first-admin.key",
    "lakeshare.db",
    "audit",
    "index",
    "logs",
    "nessie",
    "runs",
    "dagster_home",
    "demo.share",
)
# SQLite keeps files beside its database.
BESIDE_DATABASE = ("", "-wal", "-shm", "-journal")
SECRETS = ".env"
# pyiceberg's own configuration, with credentials of catalogs.
CATALOGS = ".pyiceberg.yaml"


def require_own_stores(table: str, location: str, roots: Collection[str], settings: ServerSettings) -> None:
    """Refuse to sign for a table whose files are in stores that are not its own.

    Deletion vectors that this server made are the table's, wherever that is: they are named by their content.

    Raises:
        Unserveable: names the store or the folder, and how the operator allows it.
    """
    own = place_of(location)
    also = (place_of(place, settings.azure_account) for place in settings.files_also_in.split())
    allowed = [_store_of(own), *also]
    for root in sorted(set(roots) - {str(settings.vectors_dir)}):
        try:
            place = place_of(root or (location if own.kind == LOCAL else "/"))
        except BadRequest as error:
            reason = f"{table} names files in {root}: {error}"
            raise Unserveable(reason, "Provider: copy them.", places=[root]) from error
        on_our_disk = place.kind == LOCAL and own.kind != LOCAL
        if on_our_disk or not any(_holds(one, place) for one in allowed):
            raise _refusal(table, place, may_be_allowed=not on_our_disk)


def is_local(root: str) -> bool:
    """Whether a root of an index is of the server's own disk: a folder, or nothing for the table's own location."""
    return root.startswith("/") or not root


def local_folders(location: str, roots: Collection[str]) -> list[str]:
    """The folders of the server's own disk that files of a table are in, by the roots of an index; its own first."""
    place = place_of(location)
    own = [place.key] if place.kind == LOCAL else []
    return [*own, *sorted(root for root in roots if root and is_local(root))]


def is_handed_out(place: Path, folder: str, settings: ServerSettings) -> bool:
    """Whether a local file, whose links are resolved, may be read as one of a table's files below `folder`.

    It lies there, or where the operator lets any table have files; it is none of the server's own.
    """
    if is_our_own(place, settings):
        return False
    also = (place_of(one, settings.azure_account) for one in settings.files_also_in.split())
    allowed = [folder, *(one.key for one in also if one.kind == LOCAL)]
    return any(place.is_relative_to(os.path.realpath(one)) for one in allowed)


def is_our_own(place: Path, settings: ServerSettings) -> bool:
    """Whether a local file, whose links are resolved, is one of the server's own: its keys, catalog, logs, settings."""
    if place.name == CATALOGS:
        return True
    if place.name.startswith(SECRETS) and place.parent == Path.cwd():
        return True
    return any(place.is_relative_to(one) for one in _own_places(settings.state_dir, settings.catalog_url))


def _store_of(table: Place) -> Place:
    """The store of a table: of a local one the folder around it, unless that is the whole disk."""
    if table.kind != LOCAL:
        return table
    folder = _folder(table).rstrip("/")
    return Place(LOCAL, "", folder if folder.count("/") == 1 else posixpath.dirname(folder))


def _holds(store: Place, place: Place) -> bool:
    return store.root == place.root and (store.kind != LOCAL or _folder(place).startswith(_folder(store)))


def _folder(place: Place) -> str:
    """A local folder in one spelling, with a slash at its end."""
    return posixpath.normpath("/" + place.key.lstrip("/")).rstrip("/") + "/"


def _refusal(table: str, place: Place, *, may_be_allowed: bool) -> Unserveable:
    where = f"{place.key} on the server's own disk" if place.kind == LOCAL else place.root
    remedy = f", or allow the store with LAKESHARE_FILES_ALSO_IN={place.root or place.key}"
    return Unserveable(
        f"{table} names files in {where}, which is not the store it is in itself.",
        f"Provider: copy them{remedy if may_be_allowed else ''}.",
        places=[place.location],
    )


@lru_cache(maxsize=1)
def _own_places(state_dir: Path, catalog_url: str) -> list[Path]:
    """Resolved once: every file that is read is compared with them."""
    found = [state_dir / name for name in OUR_OWN]
    homes = (os.environ.get(name, "") for name in ("PYICEBERG_HOME", "HOME"))
    configured = (Path(folder) / CATALOGS for folder in (*homes, ""))
    # They may be links to where secrets are kept.
    found += [secret for secret in (Path(SECRETS), *configured) if secret.exists()]
    for database in (state_dir / "lakeshare.db", database_file(catalog_url)):
        if database is not None:
            found += [database.with_name(database.name + ending) for ending in BESIDE_DATABASE]
    return [place.resolve() for place in found]
