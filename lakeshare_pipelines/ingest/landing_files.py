"""Which file of a delivery belongs to which table, and in which format it is."""

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from lakeshare_pipelines.contracts import SetContract, Table
from lakeshare_pipelines.errors import DeliveryError

FileFormat = Literal["csv", "jsonl", "parquet"]

ENDINGS: dict[str, FileFormat] = {
    ".csv": "csv",
    ".csv.gz": "csv",
    ".jsonl": "jsonl",
    ".jsonl.gz": "jsonl",
    ".ndjson": "jsonl",
    ".ndjson.gz": "jsonl",
    ".json": "jsonl",
    ".json.gz": "jsonl",
    ".parquet": "parquet",
}

# Spark reads a path as a pattern and a URI: nothing in a name may mean something to either.
PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._+=,@-]*")

NO_LINKS = "Deliver the files themselves: nothing outside the landing folder is read."


@dataclass(frozen=True)
class LandingFile:
    """A file of a delivery with what is known from its name."""

    path: Path
    set_name: str
    partition: str
    table: Table
    format: FileFormat

    @property
    def label(self) -> str:
        """How the quarantine names it, and messages about its set: `2013-01-01/departures.csv.gz`."""
        return f"{self.partition}/{self.path.name}"

    @property
    def title(self) -> str:
        """How an error names it: `flights/2013-01-01/departures.csv.gz`."""
        return f"{self.set_name}/{self.label}"

    @property
    def is_compressed(self) -> bool:
        """Whether it is a gzip file."""
        return self.path.suffix == ".gz"


def is_data(name: str) -> bool:
    """Whether a name in a delivery is data: markers and files still being written begin with `_` or a dot."""
    return not name.startswith(("_", "."))


def is_inside(landing: Path, path: Path) -> bool:
    """Whether a path, with every link in it followed, is in the landing folder. The folder itself may be a link."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(landing))


def assign_files(contract: SetContract, partition: str, files: Iterable[Path]) -> list[LandingFile]:
    """The files with their tables.

    Raises:
        DeliveryError: a file belongs to no table, has an unknown format or is a link to a place outside landing, or a
            table has no file.
    """
    sources = [table for table in contract.tables if table.source is not None]
    assigned = [_assign(contract, partition, sources, path) for path in files]
    for table in sources:
        if not any(file.table is table for file in assigned):
            raise DeliveryError(
                f"{contract.name}/{partition}",
                f"holds no file for table {table.name}",
                f"Deliver it as {table.source}.csv, .csv.gz, .jsonl or .parquet; all tables of a set arrive together.",
            )
    return assigned


def _assign(contract: SetContract, partition: str, tables: Sequence[Table], path: Path) -> LandingFile:
    title, name = f"{contract.name}/{partition}", path.name
    ending = next((end for end in sorted(ENDINGS, key=len, reverse=True) if name.endswith(end)), None)
    # `<landing>/<set>/<partition>/<file>`
    if not is_inside(path.parents[2], path):
        raise DeliveryError(title, f"{name} is a link to a place outside the landing folder", NO_LINKS)
    if not path.is_file():
        raise DeliveryError(
            title, f"{name} is not a file", "Deliver plain files, without folders or dead links."
        )
    if not PLAIN_NAME.fullmatch(name):
        raise DeliveryError(
            title, f"the file name {name!r} has unusual characters", "Use letters, digits and . _ - only."
        )
    if ending is None:
        raise DeliveryError(
            title,
            f"{name} is of no known format",
            f"Known are {', '.join(ENDINGS)}; a name that begins with _ is left alone.",
        )
    stem = name.removesuffix(ending)
    fitting = [t for t in tables if fnmatchcase(stem, t.source or "") or fnmatchcase(stem, f"{t.source}-*")]
    if not fitting:
        wanted = ", ".join(f"{table.source}{{,-*}}" for table in tables)
        raise DeliveryError(
            title, f"{name} belongs to no table of the set", f"Expected are files named {wanted}."
        )
    # `departures_late` may be a table beside `departures*`: the longest source is the most exact one.
    table = max(fitting, key=lambda t: len(t.source or ""))
    return LandingFile(path, contract.name, partition, table, ENDINGS[ending])
