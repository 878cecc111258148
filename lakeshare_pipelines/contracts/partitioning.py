"""Partitions of a set: their keys, the values of the partition column that belong to each, and other sets' keys.

Here is the arithmetic only; Spark's expressions for it are in `spark/rows.py`, Dagster's in `defs/wap.py`.
"""

import datetime as dt
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import cache, cached_property
from typing import Annotated, Literal
from zoneinfo import ZoneInfo, available_timezones

from pydantic import Field

from lakeshare_pipelines.contracts.document import (
    PROPERTIES,
    Computed,
    Faults,
    NonEmpty,
    ReadAs,
    Written,
    declared,
)
from lakeshare_server.errors import suggest

NamedKind = Literal["hourly", "daily", "weekly", "monthly", "dynamic", "none"]
Kind = NamedKind | Literal["static"]
Keys = Annotated[list[NonEmpty], Field(min_length=1)] | None
TIME_KINDS = ("hourly", "daily", "weekly", "monthly")
WHOLE_KEY = "all"
SEPARATOR = "/"
"""Between the keys of both dimensions: the partition `2024-01-01/eu` is a folder in the folder of its day."""
EVERY_NAME = "*"
"""Stands for all names of the second dimension in the partitions of an input."""
LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*")
"""Keys of static and dynamic partitions: they are names of folders, and `...` is between the ends of a range."""
MAX_LABEL = 100
HOUR = dt.timedelta(hours=1)

_EXAMPLES = {
    "hourly": "2013-01-01-13",
    "daily": "2013-01-01",
    "weekly": "2013-01-07",
    "monthly": "2013-01-01",
}
_NOUNS = {
    "hourly": "an hour",
    "daily": "a day",
    "weekly": "the Monday of a week",
    "monthly": "the first day of a month",
}
_COLUMN_TYPES = {
    "hourly": ("timestamp", "string"),
    **dict.fromkeys(("daily", "weekly", "monthly"), ("date", "timestamp")),
    **dict.fromkeys(("static", "dynamic"), ("string",)),
}
_TRANSFORMS = {
    "date": {
        **dict.fromkeys(("daily", "weekly"), ("identity", "day")),
        "monthly": ("identity", "day", "month"),
    },
    "timestamp": {
        "hourly": ("hour",),
        **dict.fromkeys(("daily", "weekly"), ("hour", "day")),
        "monthly": ("hour", "day", "month"),
    },
}


@declared()
class SecondDimension:
    """Names by which each partition of time is divided: values of the second partition column of each table.

    `values` are the only names; None: any label, which is added when it is first delivered.
    """

    column: NonEmpty
    values: Annotated[
        tuple[str, ...] | None,
        ReadAs(Keys, lambda keys: None if keys is None else tuple(keys)),
        Field(alias="static"),
    ] = None
    kind: Written[Literal["dynamic"] | None] = None

    def complete(self, kind: Kind, place: Faults) -> "SecondDimension | None":
        """Returns the dimension if a set with partitions of this kind can have it."""
        if kind not in TIME_KINDS:
            hint = f"Leave it out, or set kind to {', '.join(TIME_KINDS)}."
            place.add(f"{kind} partitions have no second dimension", hint)
            return None
        if (self.kind is None) == (self.values is None):
            hint = "Give static with all names, or kind: dynamic."
            place.add("second needs either static or kind: dynamic", hint)
        _check_labels(self.values or (), place)
        return self

    def is_name(self, name: str) -> bool:
        return is_label(name) if self.values is None else name in self.values

    @property
    def example(self) -> str:
        return self.values[0] if self.values else "eu"

    def describe(self) -> str:
        """Returns column and names: `region (eu, us)`."""
        return f"{self.column} ({'dynamic' if self.values is None else ', '.join(self.values)})"


@declared()
class Partitioning:
    """How a set is divided. `values` are the keys of static partitions.

    With a `second` dimension a partition is a name of it within a partition of time: `2024-01-01/eu`.

    The partition of a time is the hour, day, week (from Monday) or month in `time_zone` that begins at its key:
    `2024-01-01-13` for an hour, otherwise its first day, `2024-01-01`. The second of two hours of the same name, when
    clocks are set back, has its offset at the end: `2024-10-27-02+0100`.
    """

    kind: Annotated[Kind, ReadAs(NamedKind, default="none")] = "none"
    first: Computed[str | None] = None
    time_zone: str = "UTC"
    end_offset: Annotated[int, Field(ge=0, le=100_000)] = 0
    """How many partitions that have not ended yet can be published."""
    lateness_hours: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    """How long after its end a partition takes deliveries; None: always."""
    values: Annotated[
        tuple[str, ...], ReadAs(Keys, lambda keys: tuple(keys or ())), Field(alias="static")
    ] = ()
    second: SecondDimension | None = None

    def complete(self, first: str | None, faults: Faults) -> "Partitioning":
        """Returns the partitions of a set from `first` on; with a time zone that is known."""
        place = faults.at(PROPERTIES, "partitioning")
        written = place.get() or {}
        kind: Kind = "static" if self.values else self.kind
        if self.values and "kind" in written:
            place.add("it has both kind and static", "Keep one of them.")
        for name in ("timeZone", "endOffset", "latenessHours"):
            if name in written and kind not in TIME_KINDS:
                hint = f"Leave it out, or set kind to {', '.join(TIME_KINDS)}."
                place.add(f"{kind} partitions have no {name}", hint)
        zone = self.time_zone
        if zone != "UTC" and zone not in list_time_zones():
            hint = suggest(zone, list_time_zones(), "Give a name of the IANA database, as Europe/Berlin.")
            place.add(f"timeZone {zone!r} is not known", hint)
            zone = "UTC"
        elif kind == "hourly" and not has_whole_hours(zone):
            hint = "Give UTC, or a zone whose hours begin at those of UTC."
            place.add(f"timeZone {zone!r} has hours that begin within hours of UTC", hint)
        _check_labels(self.values, place)
        second = None if self.second is None else self.second.complete(kind, place)
        return replace(self, kind=kind, first=first, time_zone=zone, second=second)

    def check_first(self, faults: Faults) -> None:
        """Checks the first partition; `faults` are of the customProperties of the set."""
        first = self.first
        if not faults.has_none():
            return
        if self.is_time and first is None:
            part = "day" if self.kind != "hourly" else "hour"
            kind = f"{'an' if self.kind == 'hourly' else 'a'} {self.kind}"
            hint = f"Give the first {part}, as {self.time_dimension.example}."
            faults.add(f"{kind} set needs firstPartition", hint, near=("partitioning",))
        elif first is not None and not (self.is_time and self.time_dimension.is_key(first)):
            hint = "Give a day as 2013-01-01 and partitioning: daily, or leave it out."
            if self.is_time and self.kind != "daily":
                hint = f"{self.expected_first}, or change partitioning."
            faults.add(f"firstPartition cannot be {first!r}", hint, near=("firstPartition",))

    @cached_property
    def time_dimension(self) -> "Partitioning":
        """The partitions without their second dimension."""
        return replace(self, second=None)

    @property
    def is_time(self) -> bool:
        return self.kind in TIME_KINDS

    @property
    def is_whole(self) -> bool:
        """Whether the set has one partition, `all`."""
        return self.kind == "none"

    @property
    def has_one_value_each(self) -> bool:
        """Whether the rows of a partition have the same value in a column of dates or strings."""
        return self.kind not in ("weekly", "monthly")

    @property
    def noun(self) -> str:
        """What one partition is: `day`."""
        return {"hourly": "hour", "daily": "day", "weekly": "week", "monthly": "month"}.get(
            self.kind, "partition"
        )

    @property
    def example(self) -> str:
        if self.second is not None:
            return f"{self.time_dimension.example}{SEPARATOR}{self.second.example}"
        return _EXAMPLES.get(self.kind) or (self.values[0] if self.values else WHOLE_KEY)

    @property
    def expected(self) -> str:
        """What to give as a key, as an imperative sentence."""
        if self.is_whole:
            return "The set has one partition: all."
        if self.second is not None:
            names = (
                "a name of letters, digits, '_', '-' and single '.'"
                if self.second.values is None
                else f"one of {', '.join(self.second.values)}, or add it to second.static of partitioning"
            )
            time = self.time_dimension.expected.removesuffix(".")
            return f"{time}, then {SEPARATOR}, then for {self.second.column} {names}."
        if self.kind == "static":
            return f"Give one of: {', '.join(self.values)}."
        if self.kind == "dynamic":
            return (
                f"Give a name of letters, digits, '_', '-' and single '.', of at most {MAX_LABEL} characters."
            )
        zone = "" if self.time_zone == "UTC" else f", in {self.time_zone}"
        return f"Give {_NOUNS[self.kind]} from {self.first} on, as {self.example}{zone}."

    @property
    def expected_first(self) -> str:
        """What to give as the first partition, without a final point."""
        return f"Give {_NOUNS[self.kind]}, as {self.time_dimension.example}"

    @property
    def column_types(self) -> tuple[str, ...]:
        """The types that the first partition column of a table may have."""
        return _COLUMN_TYPES.get(self.kind, ())

    def can_divide(self, column_type: str, transform: str) -> bool:
        """Whether no file of a table, partitioned so, has rows of two partitions.

        Formats cut days and months of timestamps in UTC.
        """
        if column_type not in self.column_types:
            return False
        if column_type == "string":
            return transform == "identity"
        allowed = _TRANSFORMS[column_type][self.kind]
        is_shifted = column_type == "timestamp" and self.time_zone != "UTC"
        return transform in (("hour",) if is_shifted else allowed)

    def is_key(self, key: str) -> bool:
        """Whether `key` names a partition, in its one spelling."""
        if self.second is not None:
            first, name = split_key(key)
            return self.second.is_name(name) and self.time_dimension.is_key(first)
        if self.is_whole:
            return key == WHOLE_KEY
        if self.kind == "static":
            return key in self.values
        if self.kind == "dynamic":
            return is_label(key)
        try:
            start = self._parse(key)
        except ValueError:
            return False
        # Days within a week and hours that clocks skip are parsed as well; each would be a second name of a partition.
        return self.find_key(start) == key and (self.first is None or start >= self._first_start)

    def get_window(self, key: str) -> tuple[dt.datetime, dt.datetime]:
        """Returns start and end (exclusive) of a partition of time, in UTC.

        Raises:
            ValueError: `key` is none.
        """
        start = self._parse(key)
        return start, self._find_next(start)

    def find_key(self, value: dt.datetime | dt.date | str) -> str:
        """Returns the key of the partition that a value of the partition column belongs to.

        A date is a day of `time_zone`; a time has an offset.
        """
        if isinstance(value, str):
            return value
        if isinstance(value, dt.datetime):
            return self._format(self._find_start(value.astimezone(self._zone)))
        return self._format(self._find_start(dt.datetime.combine(value, dt.time(), self._zone)))

    def list_keys(self, first: str, last: str) -> tuple[str, ...]:
        """Returns the keys from `first` to `last`, both included.

        Raises:
            ValueError: they are no keys of times or of static partitions, or in the wrong order.
        """
        if not self.is_key(first) or not self.is_key(last):
            raise ValueError(f"{first}...{last} has an end that is no partition")
        if self.second is not None:
            return self._list_cells(split_key(first), split_key(last))
        keys: tuple[str, ...] = ()
        if self.is_time:
            keys = tuple(self._walk(self._parse(first), self.get_window(last)[1]))
        elif self.kind == "static":
            keys = self.values[self.values.index(first) : self.values.index(last) + 1]
        if not keys:
            raise ValueError(f"{first}...{last} is empty")
        return keys

    def _list_cells(self, first: tuple[str, str], last: tuple[str, str]) -> tuple[str, ...]:
        """Returns the keys of a range in each dimension, as Dagster has ranges of two dimensions."""
        values = None if self.second is None else self.second.values
        names: tuple[str, ...] = (first[1],) if first[1] == last[1] else ()
        if values is not None:
            names = values[values.index(first[1]) : values.index(last[1]) + 1]
        if not names:
            raise ValueError(f"{first[1]}...{last[1]} is no range of names")
        times = self.time_dimension.list_keys(first[0], last[0])
        return tuple(f"{time}{SEPARATOR}{name}" for time in times for name in names)

    def list_days(self, key: str) -> list[dt.date]:
        """Returns the days of a daily, weekly or monthly partition."""
        start, end = (at.astimezone(self._zone).date() for at in self.get_window(key))
        return [start + dt.timedelta(days=number) for number in range((end - start).days)]

    def can_map(self, other: "Partitioning") -> bool:
        """Whether keys correspond to those of another set: by time, or as equal names, in one dimension or both."""
        labels = ("static", "dynamic")
        if self.second is not None and other.kind in labels:
            return True
        return (self.is_time and other.is_time) or (self.kind in labels and other.kind in labels)

    def map_key(self, key: str, other: "Partitioning") -> tuple[str, ...]:
        """Returns the partitions of `other` that have a time in common with the partition `key`, or the same name.

        For a set with one dimension, `2024-01-01/*` are all partitions of a day of a set with two.
        """
        if self.second is not None or other.second is not None:
            return self._map_cell(key, other)
        if not self.is_time or not other.is_time:
            return (key,) if self.can_map(other) and other.is_key(key) else ()
        start, end = self.get_window(key)
        begin = other._find_start(start.astimezone(other._zone))
        return tuple(found for found in other._walk(begin, end) if other.is_key(found))

    def _map_cell(self, key: str, other: "Partitioning") -> tuple[str, ...]:
        first, name = split_key(key)
        if not other.is_time:
            return (name,) if self.can_map(other) and other.is_key(name) else ()
        times = self.time_dimension.map_key(first, other.time_dimension)
        if other.second is None:
            return times
        name = EVERY_NAME if self.second is None else name
        if name != EVERY_NAME and not other.second.is_name(name):
            return ()
        return tuple(f"{time}{SEPARATOR}{name}" for time in times)

    def merge_windows(self, keys: Sequence[str]) -> list[tuple[dt.datetime, dt.datetime]]:
        """Returns the windows of keys in order, those that touch as one."""
        merged: list[tuple[dt.datetime, dt.datetime]] = []
        for start, end in sorted(self.get_window(key) for key in keys):
            if merged and merged[-1][1] >= start:
                merged[-1] = merged[-1][0], max(end, merged[-1][1])
            else:
                merged.append((start, end))
        return merged

    def to_day(self, at: dt.datetime) -> dt.date:
        """Returns the day in `time_zone` of the start or end of a window."""
        return at.astimezone(self._zone).date()

    def is_late(self, key: str, now: dt.datetime) -> bool:
        """Whether the time has passed in which the partition takes deliveries."""
        if self.lateness_hours is None or not self.is_time:
            return False
        return now >= self.get_window(key)[1] + self.lateness_hours * HOUR

    def describe(self) -> str:
        """Returns kind and settings: `daily, from 2013-01-01`."""
        if self.is_whole:
            return "one partition, all"
        if self.kind == "static":
            return f"static: {', '.join(self.values)}"
        if self.kind == "dynamic":
            return "dynamic"
        zone = "" if self.time_zone == "UTC" else f" in {self.time_zone}"
        late = "" if self.lateness_hours is None else f", at most {self.lateness_hours} hours late"
        by = "" if self.second is None else f", by {self.second.describe()}"
        return f"{self.kind}, from {self.first}{zone}{late}{by}"

    @cached_property
    def _zone(self) -> ZoneInfo:
        return ZoneInfo(self.time_zone)

    @cached_property
    def _first_start(self) -> dt.datetime:
        return self._parse(self.first or "")

    def _parse(self, key: str) -> dt.datetime:
        """Returns the instant, in UTC, that a key names."""
        pattern = (
            r"(\d{4}-\d{2}-\d{2})-(\d{2})([+-]\d{4})?" if self.kind == "hourly" else r"(\d{4}-\d{2}-\d{2})"
        )
        found = re.fullmatch(pattern, key if self.second is None else split_key(key)[0], re.ASCII)
        if found is None or not self.is_time:
            raise ValueError(f"{key!r} is no key of {self.kind} partitions")
        hour = int(found[2]) if self.kind == "hourly" else 0
        fold = 1 if self.kind == "hourly" and found[3] else 0
        local = dt.datetime.combine(dt.date.fromisoformat(found[1]), dt.time(hour, fold=fold), self._zone)
        return local.astimezone(dt.UTC)

    def _format(self, start: dt.datetime) -> str:
        local = start.astimezone(self._zone)
        if self.kind != "hourly":
            # A day that begins at 01:00, because clocks are set forward at midnight, has its own name too.
            return local.date().isoformat()
        suffix = local.strftime("%z") if local.fold else ""
        return f"{local:%Y-%m-%d-%H}{suffix}"

    def _find_start(self, local: dt.datetime) -> dt.datetime:
        """Returns the instant, in UTC, at which the partition of a local time begins."""
        if self.kind == "hourly":
            return local.replace(minute=0, second=0, microsecond=0).astimezone(dt.UTC)
        day = local.date()
        if self.kind == "weekly":
            day -= dt.timedelta(days=day.weekday())
        elif self.kind == "monthly":
            day = day.replace(day=1)
        return dt.datetime.combine(day, dt.time(), self._zone).astimezone(dt.UTC)

    def _find_next(self, start: dt.datetime) -> dt.datetime:
        """Returns the start of the partition after the one that begins at `start`."""
        if self.kind == "hourly":
            return start + HOUR
        day = start.astimezone(self._zone).date()
        days = {"daily": 1, "weekly": 7, "monthly": 32}[self.kind]
        later = dt.datetime.combine(day + dt.timedelta(days=days), dt.time(), self._zone)
        return self._find_start(later)

    def _walk(self, start: dt.datetime, end: dt.datetime) -> Iterator[str]:
        while start < end:
            yield self._format(start)
            start = self._find_next(start)


def split_key(key: str) -> tuple[str, str]:
    """Returns the key of time and the name of the second dimension, which is empty without one."""
    first, _, name = key.partition(SEPARATOR)
    return first, name


def has_written(keys: Collection[str], written: Collection[str]) -> bool:
    """Whether one of `keys`, which may end in `/*`, is among the partitions that a publication wrote."""
    if any(key in written for key in keys):
        return True
    every = {split_key(key)[0] for key in keys if key.endswith(f"{SEPARATOR}{EVERY_NAME}")}
    return bool(every) and any(split_key(key)[0] in every for key in written)


def is_label(key: str) -> bool:
    """Whether `key` can be a key of static and dynamic partitions."""
    return LABEL.fullmatch(key) is not None and len(key) <= MAX_LABEL and key != WHOLE_KEY


def has_whole_hours(time_zone: str) -> bool:
    """Whether hours begin at full hours of UTC in this zone, at least since 1990."""
    zone = ZoneInfo(time_zone)
    days = (dt.datetime(year, month, 1, tzinfo=zone) for year in range(1990, 2038) for month in (1, 4, 7, 10))
    return all((day.utcoffset() or dt.timedelta()) % HOUR == dt.timedelta() for day in days)


def _check_labels(values: Sequence[str], place: Faults) -> None:
    for value in values:
        if not is_label(value):
            hint = (
                "Use letters, digits, '_', '-' and single '.', at most 100 characters, and not the name all."
            )
            place.add(f"static cannot have {value!r}", hint)
    # Folders of a landing area may ignore case.
    for name, count in Counter(value.lower() for value in values).items():
        if count > 1:
            place.add(f"static has {name!r} {count} times", "Keys must differ in more than case.")


@cache
def list_time_zones() -> frozenset[str]:
    """Lists the names of the IANA database; reading them takes 5 ms."""
    return frozenset(available_timezones())
