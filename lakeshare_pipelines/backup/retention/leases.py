"""Leases: who reads a point just now, so that no sweep removes it under their hands.

A lease is a file in the point's folder that ends by itself; whoever reads longer renews it.
"""

import datetime as dt
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

from lakeshare_pipelines.backup.points import Points
from lakeshare_pipelines.backup.stores import Listed
from lakeshare_pipelines.errors import BackupError, ObjectMissing

LEASE = dt.timedelta(days=2)
SWEPT = "swept.json"
"""What says in a point's folder that its sweep began; written before leases are looked at, as leases are before it."""


@contextmanager
def reading(
    points: Points,
    day: str,
    reader: str,
    length: dt.timedelta = LEASE,
    *,
    as_made: bool = False,
    unwritable: Callable[[str], None] | None = None,
) -> Iterator[None]:
    """Hold a point for the length of a `with` block; `reader` names the holder for people.

    With `as_made` it does not matter what was found damaged since the point was made. Where `unwritable` is given, a
    target that cannot be written is read all the same: it gets a sentence about what that means.

    Raises:
        BackupError: the point is being swept, or is not there.
    """
    key = f"{points.folder(day)}leases/{uuid4().hex}.json"
    until = dt.datetime.now(dt.UTC) + length
    lease = json.dumps({"reader": reader, "until": until.isoformat()}).encode()
    try:
        points.store.put(key, lease)
        is_held = True
    except BackupError as error:
        if unwritable is None:
            raise
        is_held = False
        unwritable(f"No sweep is kept away from point {day} meanwhile, its place cannot be written: {error}")
    try:
        if points.store.head(f"{points.folder(day)}{SWEPT}") is not None:
            raise BackupError(
                f"backup {points.backup.name}, point {day}",
                "retention is removing it",
                "Take a newer one: `lakeshare backup list` tells which there are.",
            )
        points.get(day, as_made=as_made)
        yield
    finally:
        if is_held:
            points.store.delete(key)


def readers(points: Points, day: str, now: dt.datetime) -> list[str]:
    """Who holds a point; those whose lease ended are forgotten."""
    found = []
    for one in points.store.list(f"{points.folder(day)}leases/"):
        try:
            lease = json.loads(points.store.read(one.key))
        except ObjectMissing:
            continue  # It was given back since it was listed.
        except ValueError:
            lease = None
        found += _reader(one, lease, now)
    return sorted(found)


def _reader(listed: Listed, lease: Any, now: dt.datetime) -> list[str]:
    """Who holds a lease that has not ended."""
    try:
        until, reader = dt.datetime.fromisoformat(lease["until"]), str(lease["reader"])
        is_held = until > now
    except (ValueError, TypeError, KeyError):
        # It was written then, for no longer than that.
        is_held, reader = listed.last_modified + LEASE > now, "a reader whose lease cannot be read"
    return [reader] if is_held else []
