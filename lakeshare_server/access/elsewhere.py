"""Files outside of a table's own store: a log may name any file, and whoever writes the log is not the operator.

Bytes are read, and URLs signed, with the server's own rights. So a table gets at files of its own store, and of those
that the operator names; never from a store at the server's disk.
"""

from collections.abc import Collection
from pathlib import Path

from lakeshare_server.errors import Unserveable
from lakeshare_server.settings import ServerSettings
from lakeshare_server.stores import place_of

# What of the state folder is nobody's business; tables may lie there, too.
OUR_OWN = (
    "signing.key",
    "lakeshare.db",
    "lakeshare.db-wal",
    "lakeshare.db-shm",
    "index",
    "logs",
    "nessie",
    "runs",
)


def require_own_stores(table: str, location: str, roots: Collection[str], settings: ServerSettings) -> None:
    """Refuse to sign for a table whose files are in stores that are not its own.

    Raises:
        Unserveable: names the store, and how the operator allows it.
    """
    own = place_of(location).root
    allowed = {own, *(place_of(place).root for place in settings.files_also_in.split())}
    for root in sorted({place_of(root or "/").root for root in roots}):
        if root not in allowed or (own and not root):
            where = root or "the server's own disk"
            raise Unserveable(
                f"{table} names files in {where}, which is not the store it is in itself.",
                f"Provider: copy them, or allow the store with LAKESHARE_FILES_ALSO_IN={root or location}.",
            )


def is_our_own(path: str, settings: ServerSettings) -> bool:
    """Whether a local file is one of the server's own, whatever links lead to it: its keys, catalog and logs."""
    place, state = Path(path).resolve(), settings.state_dir.resolve()
    return any(place.is_relative_to(state / name) for name in OUR_OWN)
