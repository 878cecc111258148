"""What a builder of a hostile table works with, what it promises, and what a test knows of the finished table."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.builders.canonical import Rows
from tests.builders.delta_log import Action

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DELETION_VECTORS = ("deletionVectors",)
MAPPED = ("columnMapping",)


@dataclass(frozen=True)
class Place:
    """Where a builder makes its table, and the Spark session it may use."""

    folder: Path
    """Of all tables: a table may have files beside itself."""
    location: Path
    session: "SparkSession"

    def sql(self, *statements: str) -> None:
        """Run statements in which `{t}` stands for the table."""
        for statement in statements:
            self.session.sql(statement.replace("{t}", f"delta.`{self.location}`"))

    def conf(self, **settings: str) -> None:
        """Set `spark.databricks.delta.<name>`, dots written as `__`, for what this builder does."""
        for name, value in settings.items():
            self.session.conf.set(f"spark.databricks.delta.{name.replace('__', '.')}", value)

    def commit(self, version: int, actions: Iterable[Action]) -> None:
        """Write a commit by hand."""
        log = self.location / "_delta_log"
        log.mkdir(parents=True, exist_ok=True)
        lines = "".join(json.dumps(action, ensure_ascii=False) + "\n" for action in actions)
        (log / f"{version:020}.json").write_text(lines, "utf-8")
        # Hadoop's and Delta's own checksums speak of what was there before.
        (log / f".{version:020}.json.crc").unlink(missing_ok=True)
        (log / f"{version:020}.crc").unlink(missing_ok=True)

    def rewrite(self, version: int, change: Callable[[Action], Iterable[Action]]) -> None:
        """Put others in place of the actions of a commit."""
        lines = (self.location / "_delta_log" / f"{version:020}.json").read_text("utf-8").splitlines()
        self.commit(version, [new for line in lines for new in change(json.loads(line))])

    def forget(self, *versions: int) -> None:
        """Delete commits, as a clean-up of the log or an accident does."""
        for version in versions:
            for path in (self.location / "_delta_log").glob(f"*{version:020}.*"):
                if "checkpoint" not in path.name:
                    path.unlink()


@dataclass(frozen=True)
class Hostile:
    """A table of the matrix before it is made."""

    name: str
    about: str
    build: Callable[[Place], None]
    versions: tuple[int, ...] = ()
    cdf: tuple[tuple[int, int], ...] = ()
    needs: tuple[str, ...] = ()
    needs_at: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    client_cannot: Mapping[str, str] = field(default_factory=dict)
    refused: str | None = None
    folder: str | None = None
    relocatable: bool = True


@dataclass(frozen=True)
class HostileTable:
    """A finished table of the matrix."""

    name: str
    about: str
    location: str
    latest: int
    versions: tuple[int, ...]
    """Those whose rows Spark told."""
    cdf: tuple[tuple[int, int], ...]
    """Ranges, both ends inclusive, whose changes Spark told."""
    needs: Mapping[int, tuple[str, ...]]
    """Of each judged version the reader features without which it cannot be read; none: in parquet format, too."""
    client_cannot: Mapping[str, str]
    """What the Python client is unable to read, whatever the server sends, and why."""
    refused: str | None
    """Why nobody can read its newest version; none of its versions is judged then."""
    judged: str
    """The file with Spark's rows."""

    def rows(self, version: int) -> Rows:
        """What Spark reads at a version."""
        return _rows(self._judgement["versions"][str(version)])

    def changes(self, start: int, end: int) -> Rows:
        """What Spark reads from the change data feed."""
        return _rows(self._judgement["cdf"][f"{start}-{end}"])

    def write(self, judgement: Mapping[str, Any]) -> None:
        """Keep the table's record and Spark's rows."""
        record = asdict(self) | {
            "needs": {str(version): list(needs) for version, needs in self.needs.items()}
        }
        Path(self.judged).write_text(json.dumps({"table": record, **judgement}), "utf-8")

    @classmethod
    def read(cls, path: Path) -> "HostileTable":
        """The table that was written to a file."""
        record = json.loads(path.read_text("utf-8"))["table"]
        return cls(
            **record
            | {
                "versions": tuple(record["versions"]),
                "cdf": tuple((start, end) for start, end in record["cdf"]),
                "needs": {int(version): tuple(needs) for version, needs in record["needs"].items()},
                "judged": str(path),
            }
        )

    @property
    def _judgement(self) -> dict[str, Any]:
        return json.loads(Path(self.judged).read_text("utf-8"))


def _rows(told: Mapping[str, Any]) -> Rows:
    return Rows(tuple((name, kind) for name, kind in told["columns"]), tuple(told["rows"]))


TABLES: dict[str, Hostile] = {}


def hostile(**promises: Any) -> Callable[[Callable[[Place], None]], Callable[[Place], None]]:
    """Add a builder to the matrix: its name is the table's, its docstring says what is hostile about it."""

    def register(build: Callable[[Place], None]) -> Callable[[Place], None]:
        name = build.__name__.removeprefix("_")
        TABLES[name] = Hostile(name, build.__doc__ or "", build, **promises)
        return build

    return register
