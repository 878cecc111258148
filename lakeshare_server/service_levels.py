"""The service levels that a contract declares (`slaProperties` of the Open Data Contract Standard)."""

from collections.abc import Mapping
from typing import Any

from lakeshare_server.yaml_documents import YamlFault, parse

_UNITS_S: Mapping[float, str] = {
    1: "s sec second seconds",
    60: "min minute minutes",
    3600: "h hr hour hours",
    86_400: "d day days",
    7 * 86_400: "w week weeks",
    30 * 86_400: "mo month months",
    365 * 86_400: "y yr year years",
}
UNITS_S = {name: seconds for seconds, names in _UNITS_S.items() for name in names.split()}
FREQUENCY, LATENCY = "frequency", "latency"


def find_freshness_goal(properties: object) -> float | None:
    """The greatest age of the last publication in seconds: the frequency and, if it is declared, the latency.

    None if no frequency is declared.

    Raises:
        ValueError: a frequency or a latency is no time.
    """
    entries = (
        [entry for entry in properties if isinstance(entry, dict)] if isinstance(properties, list) else []
    )
    times_s = {
        name: [_read_time(entry) for entry in entries if entry.get("property") == name]
        for name in (FREQUENCY, LATENCY)
    }
    if not times_s[FREQUENCY]:
        return None
    return min(times_s[FREQUENCY]) + min(times_s[LATENCY], default=0.0)


def find_goal_of_text(text: str) -> float | None:
    """The goal of a recorded contract, None without a usable one: earlier versions did not check it."""
    try:
        document: Any = parse(text).values
        return find_freshness_goal(document.get("slaProperties") if isinstance(document, dict) else None)
    except (YamlFault, ValueError):
        return None


def _read_time(entry: Mapping[str, Any]) -> float:
    name, value, unit = entry["property"], entry.get("value"), str(entry.get("unit", "d")).lower()
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    time = float(value) if is_number and value is not None else -1.0
    if not 0 <= time < float("inf") or (name == FREQUENCY and not time):
        raise ValueError(f"Give {name} a number of days, or of another unit, not {value!r}")
    if unit not in UNITS_S:
        raise ValueError(f"Give {name} one of the units s, min, h, d, w, mo and y, not {unit!r}")
    return time * UNITS_S[unit]
