"""Values as Spark casts them, and which type two sides of a comparison are compared in."""

import math
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

DAY_US = 86_400_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
BITS = {"byte": 8, "short": 16, "integer": 32, "long": 64}
FRACTIONS = ("float", "double")


@dataclass(frozen=True)
class Client:
    """Who asks: its zone (minutes east of Greenwich, or a name), its way with NaN, and its way with texts."""

    zone: int | str = 0
    nan_is_greatest: bool = True
    is_ansi: bool = False

    def local(self, us: int) -> int:
        if isinstance(self.zone, int):
            return us + self.zone * 60_000_000
        moment = EPOCH + timedelta(microseconds=us)
        try:
            return _us(moment.astimezone(ZoneInfo(self.zone)).replace(tzinfo=UTC))
        except OverflowError:
            return us

    def instant(self, local_us: int) -> int:
        if isinstance(self.zone, int):
            return local_us - self.zone * 60_000_000
        moment = (EPOCH + timedelta(microseconds=local_us)).replace(tzinfo=ZoneInfo(self.zone))
        try:
            return _us(moment)
        except OverflowError:  # at the end of Python's calendar
            return local_us


def float32(value: float) -> float:
    try:
        return struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)


def common_type(one: str, other: str, client: Client) -> str:
    """The type in which Spark compares values of two types; `exact` for numbers compared as they are."""
    if one == other:
        return one
    pair = {one, other}
    if "string" in pair:
        (kind,) = pair - {"string"}
        return _with_string(kind, client)
    if "double" in pair and all(_is_number(kind) for kind in pair):
        return "double"
    if "float" in pair and all(_is_number(kind) for kind in pair):
        (kind,) = pair - {"float"}
        return "double" if client.is_ansi or kind not in BITS else "float"
    if all(_is_number(kind) for kind in pair):
        return "exact"
    if "boolean" in pair and any(_is_number(kind) for kind in pair):
        (kind,) = pair - {"boolean"}
        return kind
    if "timestamp" in pair and pair <= {"timestamp", "date", "timestamp_ntz"}:
        return "timestamp"
    return "timestamp_ntz" if pair == {"date", "timestamp_ntz"} else "nothing"


def _with_string(kind: str, client: Client) -> str:
    if kind in BITS:
        return "long" if client.is_ansi else kind
    if kind in FRACTIONS:
        return "double" if client.is_ansi else kind
    return "double" if kind.startswith("decimal") or kind == "exact" else kind


def _is_number(kind: str) -> bool:
    return kind in BITS or kind in FRACTIONS or kind.startswith("decimal") or kind == "exact"


def cast(value: Any, kind: str, to: str, client: Client) -> Any:
    """A value of one type in another; null where there is none."""
    if value is None or kind == to:
        return value
    source = (
        "number" if kind in BITS or kind == "exact" else "decimal" if kind.startswith("decimal") else kind
    )
    try:
        return _CASTS[source](value, to, client)
    except (ValueError, OverflowError, ArithmeticError, KeyError):
        return None


def _whole(value: int, to: str) -> int:
    """As integers of that width wrap around."""
    width = BITS[to]
    return (value + (1 << (width - 1))) % (1 << width) - (1 << (width - 1))


def _from_number(value: int, to: str, _client: Client) -> Any:
    if to in BITS:
        return _whole(value, to)
    made = {**_of_exact(value), "timestamp": lambda: value * 1_000_000}
    return Decimal(value) if to.startswith("decimal") else made[to]()


def _from_decimal(value: Decimal, to: str, _client: Client) -> Any:
    if to in BITS:
        return int(value) if _whole(int(value), to) == int(value) else None
    return value if to.startswith("decimal") else _of_exact(value)[to]()


def _of_exact(value: int | Decimal) -> dict[str, Callable[[], Any]]:
    """What whole numbers and decimals are both made into."""
    return {
        "float": lambda: float32(float(value)),
        "double": lambda: float(value),
        "exact": lambda: value,
        "string": lambda: str(value),
        "boolean": lambda: value != 0,
    }


def _from_fraction(value: float, to: str, _client: Client) -> Any:
    if to in BITS:
        if math.isnan(value):
            return 0
        limit = 1 << (BITS[to] - 1)
        return limit - 1 if value >= limit else -limit if value <= -limit else int(value)
    made: dict[str, Callable[[], Any]] = {
        "float": lambda: float32(value),
        "double": lambda: value,
        "string": lambda: str(value),
        "boolean": lambda: value != 0,
    }
    return made[to]()


def _from_string(text: str, to: str, client: Client) -> Any:
    text = text.strip()
    if to in BITS:
        number = int(text)
        return number if _whole(number, to) == number else None
    made: dict[str, Callable[[], Any]] = {
        "float": lambda: float32(float(text)),
        "double": lambda: float(text),
        "boolean": lambda: {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}[
            text.lower()
        ],
        "date": lambda: _moment(text)[0] // DAY_US,
        "timestamp_ntz": lambda: _moment(text)[0],
        "timestamp": lambda: _instant(*_moment(text), client),
    }
    return made[to]()


def _from_boolean(value: bool, to: str, _client: Client) -> Any:
    if to in BITS:
        return int(value)
    if to.startswith("decimal"):
        return Decimal(int(value))
    made: dict[str, Any] = {
        "string": str(value).lower(),
        "float": float(value),
        "double": float(value),
        "exact": int(value),
    }
    return made[to]


def _from_date(days: int, to: str, client: Client) -> Any:
    made: dict[str, Callable[[], Any]] = {
        "string": lambda: date_text(days),
        "timestamp": lambda: client.instant(days * DAY_US),
        "timestamp_ntz": lambda: days * DAY_US,
    }
    return made[to]()


def _from_local(us: int, to: str, client: Client) -> Any:
    made: dict[str, Callable[[], Any]] = {
        "string": lambda: time_text(us),
        "date": lambda: us // DAY_US,
        "timestamp": lambda: client.instant(us),
    }
    return made[to]()


def _from_instant(us: int, to: str, client: Client) -> Any:
    if to in BITS:
        return _whole(us // 1_000_000, to)
    if to == "timestamp_ntz":
        return client.local(us)
    return us / 1e6 if to == "double" else _from_local(client.local(us), to, client)


_CASTS: dict[str, Callable[[Any, str, Client], Any]] = {
    "number": _from_number,
    "decimal": _from_decimal,
    "float": _from_fraction,
    "double": _from_fraction,
    "string": _from_string,
    "boolean": _from_boolean,
    "date": _from_date,
    "timestamp": _from_instant,
    "timestamp_ntz": _from_local,
}
_TIME = re.compile(
    r"(\d{4})-(\d\d?)-(\d\d?)(?:[ T](\d\d?):(\d\d?):(\d\d?)(?:\.(\d{1,6}))?(Z|[+-]\d\d:\d\d)?)?"
)


def _moment(text: str) -> tuple[int, str | None]:
    """Local microseconds and the zone that a text says."""
    found = _TIME.fullmatch(text)
    if found is None:
        raise ValueError(text)
    year, month, day, hour, minute, second = (int(part or 0) for part in found.groups()[:6])
    micros = int((found[7] or "0").ljust(6, "0"))
    return _us(datetime(year, month, day, hour, minute, second, micros, UTC)), found[8]


def _instant(local_us: int, zone: str | None, client: Client) -> int:
    if zone is None:
        return client.instant(local_us)
    if zone == "Z":
        return local_us
    minutes = int(zone[1:3]) * 60 + int(zone[4:])
    return local_us - (minutes if zone[0] == "+" else -minutes) * 60_000_000


def _us(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(microseconds=1)


def date_text(days: int) -> str:
    """A date as logs, JSON and SQL write it."""
    return (date(1970, 1, 1) + timedelta(days=days)).isoformat()


def time_text(us: int, separator: str = " ") -> str:
    """A time as SQL writes it, with as many digits as it needs."""
    text = (EPOCH + timedelta(microseconds=us)).replace(tzinfo=None).isoformat(sep=separator)
    return text.rstrip("0") if "." in text else text
