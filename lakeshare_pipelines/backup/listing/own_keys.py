"""Which keys of a source are not its own: what lakeshare writes there, and the reports of the store itself."""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_pipelines.backup.declared import Backup
from lakeshare_pipelines.backup.points import OWN_PREFIX
from lakeshare_pipelines.backup.stores import StoreAddress
from lakeshare_pipelines.backup.stores.address import FOLDER


def own_prefixes(backup: Backup) -> tuple[str, ...]:
    """Prefixes of keys in the source's bucket that are never backed up.

    Those are `_lakeshare/` at the top of the bucket and of the source, copies and records when the target lies in the
    source, and the place where reports arrive when that is the source's bucket too.
    """
    source, target = backup.source, backup.target
    found = {OWN_PREFIX, f"{source.prefix}{OWN_PREFIX}"}
    # Of a target with a day in it all days: they begin alike.
    places = [target.model_copy(update={"url": target.url.split("{day}")[0]}), backup.records]
    if backup.listing.kind != "manifest_csv":
        told = (backup.listing.location, backup.listing.journal)
        places += [reached(backup, location) for location in told if location is not None]
    found |= {below for place in places if (below := _below(place, source))}
    return tuple(sorted(found))


def reached(backup: Backup, location: str) -> StoreAddress:
    """The address of a location that a listing is told of, reached as `listing.store` says, or as the source is."""
    url = location.rstrip("/") if location.startswith("/") else location
    return (backup.listing.store or backup.source).model_copy(update={"url": url})


def without_prefixes(rows: pa.RecordBatch, prefixes: Sequence[str]) -> pa.RecordBatch:
    """The rows of a listing whose keys begin with none of the prefixes."""
    for prefix in prefixes:
        is_own = pc.starts_with(rows["key"], prefix)
        if pc.any(is_own).as_py():
            rows = rows.filter(pc.invert(is_own))
    return rows


def _below(place: StoreAddress, source: StoreAddress) -> str:
    """What keys of the source begin with that lie at a place; empty when none can."""
    root = f"{source.url.rstrip('/')}/" if source.kind == FOLDER else f"s3://{source.bucket}/"
    if not place.url.startswith(root) or place.endpoint != source.endpoint:
        return ""
    below = place.url.removeprefix(root)
    return below if below.endswith(("-", "/")) or not below else f"{below}/"
