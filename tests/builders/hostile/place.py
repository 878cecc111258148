"""What a builder of a hostile table works with, what it promises, and what a test knows of the finished table."""

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.builders.canonical import Rows
from tests.builders.delta_log import Action
from tests.builders.protocol_lines import Format

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DELETION_VECTORS = ("deletionVectors",)
MAPPED = ("columnMapping",)


@dataclass(frozen=True)
class Place:
    """Where a builder makes its table, and the Spark session it may use."""

    location: Path
    session: "SparkSession"

    def beside(self, name: str) -> Path:
        """An empty folder outside of the table, for files that the table has elsewhere."""
        folder = self.location.with_name(f"{name} of {self.location.name}")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return folder

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
    """Judged versions, the newest one last."""
    cdf: tuple[tuple[int, int], ...] = ()
    """Judged ranges of the change data feed, both ends inclusive."""
    needs: tuple[str, ...] = ()
    """Reader features, at every version but those of `needs_at`."""
    needs_at: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    client_cannot: Mapping[str, str] = field(default_factory=dict)
    """Why it fails: under `parquet`, a version's `delta 3`, `changes delta`, a range's `changes delta 0-4`."""
    refused: str | None = None
    """Why nobody can read its newest version."""
    folder: str | None = None
    on_stores: bool = False
    """Whether it is read from object stores too, for its family or for what its paths have."""

    @property
    def folder_name(self) -> str:
        return self.folder or self.name

    @property
    def reads(self) -> Iterator[tuple[int, Format]]:
        """Each judged version in each response format that can carry it."""
        return ((version, fmt) for version in self.versions for fmt in self.formats(version))

    def needs_of(self, version: int) -> tuple[str, ...]:
        """Without which reader features, or for which other reason, a version cannot be read in parquet format."""
        return self.needs_at.get(version, self.needs)

    def formats(self, *versions: int) -> tuple[Format, ...]:
        """The response formats that can carry all of these versions."""
        return ("delta",) if any(self.needs_of(version) for version in versions) else ("parquet", "delta")

    def client_limit(self, what: str, which: int | str) -> str | None:
        """Why the Python client cannot read this, whatever the server sends; None when it can."""
        return self.client_cannot.get(what) or self.client_cannot.get(f"{what} {which}")


@dataclass(frozen=True)
class HostileTable:
    """A finished table of the matrix, and what Spark read of it; what was promised of it is in `TABLES`."""

    name: str
    location: str
    latest: int
    judged: Mapping[str, Any] = field(repr=False)
    """Spark's rows: `versions` by number, `cdf` by range."""

    def rows(self, version: int) -> Rows:
        """What Spark reads at a version."""
        return _rows(self.judged["versions"][str(version)])

    def changes(self, start: int, end: int) -> Rows:
        """What Spark reads from the change data feed."""
        return _rows(self.judged["cdf"][f"{start}-{end}"])

    def write(self, folder: Path) -> None:
        """Store Spark's rows in a file of the folder, named after the table."""
        (folder / f"{self.name}.json").write_text(json.dumps({"latest": self.latest, **self.judged}), "utf-8")

    @classmethod
    def read(cls, path: Path, tables: Path) -> "HostileTable":
        """The table whose rows are in a file; `tables` has the tables' folders."""
        judged = json.loads(path.read_text("utf-8"))
        plan = TABLES[path.stem]
        return cls(plan.name, str(tables / plan.folder_name), judged.pop("latest"), judged)


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
