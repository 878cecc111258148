"""The state that a table's own metadata shows: what engines read that open it in storage, without asking a server."""

import gzip
from collections.abc import Mapping
from dataclasses import dataclass

import orjson

from lakeshare_server.errors import TableFilesMissing
from lakeshare_server.settings import StoreSettings
from lakeshare_server.storage import Stores, place_of
from lakeshare_server.tables.delta.log import list_for_latest

GZIP = b"\x1f\x8b"


@dataclass(frozen=True)
class MetadataState:
    """What can be read by way of one Iceberg metadata file; `current` is None while a table has no snapshot.

    `snapshots` are all that are listed, `refs` the snapshots of its branches and tags by name.
    """

    current: int | None
    snapshots: frozenset[int]
    refs: Mapping[str, int]


def metadata_state(metadata_location: str, settings: StoreSettings) -> MetadataState:
    """What a metadata file shows, and to whom asks for it by id or by name.

    Raises:
        StoreError, Unavailable: the file cannot be read, or not now.
    """
    text = Stores(settings).read(metadata_location)
    try:
        metadata = orjson.loads(gzip.decompress(text) if text.startswith(GZIP) else text)
        current = metadata.get("current-snapshot-id")
        return MetadataState(
            # Older writers have -1 for none.
            current=None if current in (None, -1) else int(current),
            snapshots=frozenset(int(one["snapshot-id"]) for one in metadata.get("snapshots") or ()),
            refs={name: int(ref["snapshot-id"]) for name, ref in (metadata.get("refs") or {}).items()},
        )
    except (ValueError, TypeError, KeyError, AttributeError, OSError, EOFError) as error:
        raise TableFilesMissing(metadata_location, "it is no Iceberg metadata file, or not whole") from error


def newest_delta_version(location: str, settings: StoreSettings) -> int:
    """The newest version in the log of a Delta table.

    Raises:
        StoreError, Unavailable: the log cannot be read, or not now.
    """
    return list_for_latest(Stores(settings), location.rstrip("/")).latest


def path_below(location: str, base: str, settings: StoreSettings) -> str | None:
    """The path of a location below another one in the same store, without a slash around it; None when it is not."""
    inner, outer = (place_of(one, settings.azure_account) for one in (location, base))
    prefix = f"{outer.key.strip('/')}/".lstrip("/")
    key = inner.key.strip("/")
    if (inner.kind, inner.root) != (outer.kind, outer.root) or not key.startswith(prefix) or key == prefix:
        return None
    return key.removeprefix(prefix)
