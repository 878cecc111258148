"""What an audit says: one verdict per check of a contract, bound to the state that was audited.

Records only, JSON at every border; which checks there are stands in `checks.py`, how they run in `audit.py`.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import date, datetime, time
from typing import Any, Literal, Self

Severity = Literal["error", "warning"]

TEXT_LIMIT = 300
EVIDENCE_NAMES_BYTES = 1200
CUT_SHORT = "…"
"""Stands for the names that did not fit into a publication's evidence."""
SMALLEST_SHARE = 0.0001


@dataclass(frozen=True)
class Finding:
    """What a check found, before it has a name. `observed["reason"]` says in a sentence why it failed.

    `severity` is given where the finding weighs more than its check.
    """

    passed: bool
    observed: Mapping[str, Any] = field(default_factory=dict)
    samples: tuple[Mapping[str, Any], ...] = ()
    severity: Severity | None = None


@dataclass(frozen=True)
class Verdict:
    """The answer to one check. `observed` holds counts, fractions and what was expected and found."""

    table: str
    check: str
    severity: Severity
    passed: bool
    description: str
    observed: Mapping[str, Any] = field(default_factory=dict)
    samples: tuple[Mapping[str, Any], ...] = ()

    def __post_init__(self) -> None:
        # A verdict read back from its record must equal the one that was written, whatever Spark put into it.
        object.__setattr__(self, "observed", plain(self.observed))
        object.__setattr__(self, "samples", tuple(plain(row) for row in self.samples))

    @property
    def name(self) -> str:
        """How messages name it: `flights.departures: required__carrier`."""
        return f"{self.table}: {self.check}"

    @property
    def blocks(self) -> bool:
        """Whether it keeps the set from being published."""
        return not self.passed and self.severity == "error"

    @property
    def reason(self) -> str:
        """Why it failed, in one sentence; empty when it passed."""
        return "" if self.passed else str(self.observed.get("reason") or self.description)


@dataclass(frozen=True)
class Verdicts:
    """Every verdict on one staged state of a set. They speak of `head` and of no other state."""

    staged_ref: str
    head: str
    verdicts: tuple[Verdict, ...]
    contract_digest: str

    @property
    def green(self) -> bool:
        """Whether the state may be published: it was judged, and no check of severity error failed."""
        return bool(self.verdicts) and not any(verdict.blocks for verdict in self.verdicts)

    @property
    def failed(self) -> tuple[Verdict, ...]:
        """Failed verdicts, those that block first."""
        return tuple(
            sorted((v for v in self.verdicts if not v.passed), key=lambda verdict: not verdict.blocks)
        )

    @property
    def blocking_names(self) -> str:
        """Names of the failed checks that keep the set from being published, for messages."""
        return ", ".join(verdict.name for verdict in self.failed if verdict.blocks)

    @property
    def digest(self) -> str:
        """SHA-256 of the record in canonical JSON."""
        return hashlib.sha256(canonical(self.as_record()).encode()).hexdigest()

    def for_table(self, name: str) -> tuple[Verdict, ...]:
        """The verdicts on one table."""
        return tuple(verdict for verdict in self.verdicts if verdict.table == name)

    def as_record(self) -> dict[str, Any]:
        """JSON-able form; `from_record` reads it back."""
        return {
            "staged_ref": self.staged_ref,
            "head": self.head,
            "contract_digest": self.contract_digest,
            "verdicts": [{**asdict(verdict), "samples": list(verdict.samples)} for verdict in self.verdicts],
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """The verdicts a record was made from."""
        verdicts = tuple(
            Verdict(**{**verdict, "samples": tuple(verdict["samples"])}) for verdict in record["verdicts"]
        )
        return cls(record["staged_ref"], record["head"], verdicts, record["contract_digest"])

    def as_evidence(self) -> dict[str, Any]:
        """What a publication carries in its commit: counts, names of what failed, the digest; under 2 kB."""
        return {
            "digest": self.digest,
            "audited": self.head,
            "contract": self.contract_digest,
            "checks": len(self.verdicts),
            "failed": len(self.failed),
            "blocking": sum(verdict.blocks for verdict in self.verdicts),
            "failed_checks": _fitting(verdict.name for verdict in self.failed),
        }


def share(part: int, whole: int) -> str:
    """A part of a whole for people: `12.50%`, and never 0% of what is there."""
    if 0 < part < whole * SMALLEST_SHARE:
        return f"less than {SMALLEST_SHARE:.2%}"
    return f"{part / whole:.2%}" if whole else "none"


def canonical(record: object) -> str:
    """JSON with one spelling per value."""
    return json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def plain(value: Any) -> Any:
    """A value of Spark, numpy or Great Expectations as JSON has it; Any because that is what they give."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return value if len(value) <= TEXT_LIMIT else value[: TEXT_LIMIT - 1] + "…"
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    return _plain_rest(value)


def _plain_rest(value: Any) -> Any:
    if isinstance(value, bytes | bytearray):
        return plain(bytes(value).hex())
    if isinstance(value, set | frozenset):
        return sorted((plain(item) for item in value), key=str)
    if hasattr(value, "asDict"):
        return plain(value.asDict(recursive=True))
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    return plain(str(value))


def _fitting(names: Iterable[str]) -> list[str]:
    fitting: list[str] = []
    room = EVIDENCE_NAMES_BYTES
    for name in names:
        room -= len(json.dumps(name)) + 1
        if room < 0:
            return [*fitting, CUT_SHORT]
        fitting.append(name)
    return fitting
