"""What is asked of a restore, what it will take, and what came of it."""

import datetime as dt
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict

from lakeshare_pipelines.backup.records import FoundTable
from lakeshare_pipelines.backup.stores import StoreAddress

Way = Literal["in_place", "elsewhere", "mount"]


@dataclass(frozen=True)
class Wish:
    """One table of a point, and where it shall be.

    `table` is its name in the lake (`flights.departures`), or the key of its root. `version` is a Delta version or
    the id of an Iceberg snapshot; by default the one that the point proved. `to` is the table's new root; None: the
    original place.
    """

    table: str
    day: str | None = None
    version: int | None = None
    to: StoreAddress | None = None


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True)


class RestorePlan(_Record):
    """What a restore of one table will do, told before it does anything."""

    table: FoundTable
    day: str
    version: int
    """Delta version, or Iceberg's snapshot id."""
    place: str
    """Location of the table's root afterwards."""
    way: Way
    objects: int
    size_bytes: int
    there: int
    """Objects that are at their place already, and stay untouched."""
    archived: int
    requests: int
    usd: float
    minutes: float
    steps: tuple[str, ...]
    """Sentences: what will happen, in order."""


class RestoreRecord(_Record):
    """What a restore did."""

    day: str
    table: FoundTable
    version: int
    location: str
    """What opens: the table's root, or Iceberg's metadata.json."""
    rows: int | None
    """As an independent reader counted; None where it cannot."""
    files: int
    opened_by: str
    objects: int
    """How many were copied; others were there."""
    size_bytes: int
    started_at: dt.datetime
    seconds: float
    registered_as: str | None = None
    """The table's name in the lake, when main or a live log shows the restored state again."""
    publication: int | None = None
    """The number under which recipients read it; None where it is not published."""
    notes: tuple[str, ...] = ()
    """Sentences for people: what is left to them."""
