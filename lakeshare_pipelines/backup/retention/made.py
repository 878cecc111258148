"""Days that are being made while others are swept: which they are, what they build on, who keeps out of whose way."""

import datetime as dt
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from lakeshare_pipelines.backup.points import SWEEP, Points
from lakeshare_pipelines.backup.records import Point
from lakeshare_pipelines.backup.retention.leases import SWEPT
from lakeshare_pipelines.errors import BackupError

CLAIM = "claim.json"


def days_being_made(points: Points) -> list[str]:
    """Days that somebody claimed and that have no point yet."""
    start = points.folder("x").removesuffix("x/")
    keys = [one.key.removeprefix(start) for one in points.store.list(start)]
    claimed = {key.split("/")[0] for key in keys if key.endswith(f"/{CLAIM}")}
    done = {key.split("/")[0] for key in keys if key.endswith(("/point.json", f"/{SWEPT}"))}
    return sorted(claimed - done)


def needed_by_making(points: Points, finished: Sequence[Point]) -> dict[str, str]:
    """Points that days being made may build on, with the day that does.

    That is the newest point there was when the day was claimed, and any made since: a plan may be drawn again.
    """
    needed: dict[str, str] = {}
    for day in days_being_made(points):
        claim = points.store.head(f"{points.folder(day)}{CLAIM}")
        if claim is None:
            continue  # It was given up, or finished, since it was listed.
        earlier = sorted((point for point in finished if point.day < day), key=lambda point: point.day)
        before = [point for point in earlier if point.made_at <= claim.last_modified]
        since = [point for point in earlier if point.made_at > claim.last_modified]
        needed |= {point.day: day for point in (*before[-1:], *since)}
    return needed


@contextmanager
def alone(points: Points) -> Iterator[Callable[[], None]]:
    """Keep new days from being claimed during a `with` block; what it gives is called now and then to go on so.

    Raises:
        BackupError: another sweep runs.
    """

    def still() -> None:
        until = dt.datetime.now(dt.UTC) + SWEEP
        points.store.put(points.sweep_key, json.dumps({"until": until.isoformat()}).encode())

    until = points.swept_until()
    if until is not None and until > dt.datetime.now(dt.UTC):
        raise BackupError(
            f"backup {points.backup.name}",
            "another sweep runs",
            f"Wait for it, or sweep again after {until:%H:%M} UTC if it broke off.",
        )
    still()
    try:
        yield still
    finally:
        points.store.delete(points.sweep_key)
