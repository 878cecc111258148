"""What is wrong with the columns of delivered files, told once however many files have it."""

import difflib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from lakeshare_pipelines.contracts import Table
from lakeshare_pipelines.ingest.landing_files import LandingFile
from lakeshare_pipelines.ingest.raw_rows import RawRows
from lakeshare_pipelines.ingest.typed import is_fitting


@dataclass(frozen=True)
class Problem:
    """A column that is missing, unknown, given twice or of another type; `detail` is the whole sentence.

    `column` is empty where the problem is of all columns together.
    """

    column: str
    what: str
    files: tuple[LandingFile, ...] = ()

    @property
    def detail(self) -> str:
        """`column 'carrier' is missing in 2013-01-01/departures.csv.gz and 30 more files`."""
        labels = sorted(file.label for file in self.files)
        more = f" and {len(labels) - 1} more files" if len(labels) > 1 else ""
        where = f" in {labels[0]}{more}" if labels else ""
        return f"column {self.column!r} {self.what}{where}" if self.column else f"{self.what}{where}"


def structure_problems(table: Table, rows: RawRows) -> list[Problem]:
    """Compare the columns of a group of files with the contract's."""
    wanted = {column.delivered_as: column for column in table.columns if column.delivered_as}
    missing = [name for name in wanted if name not in rows.columns]
    extra = [name for name in dict.fromkeys(rows.columns) if name not in wanted]
    repeated = [name for name, count in Counter(rows.columns).items() if count > 1]
    found = []
    for name in missing:
        close = difflib.get_close_matches(name.lower(), [e.lower() for e in extra], n=1, cutoff=0.6)
        hint = f" (the file has {close[0]!r})" if close else ""
        found.append(Problem(name, f"is missing{hint}", rows.files))
    if len(missing) == len(wanted) and extra and rows.files[0].format == "csv":
        # The names may be values of the first row, which do not belong into messages.
        what = f"none of the {len(extra)} columns is in the contract, the first line may not be a header,"
        return [*found, Problem("", what, rows.files)]
    found += [Problem(name, "is not in the contract", rows.files) for name in extra]
    found += [Problem(name, "is given twice", rows.files) for name in repeated]
    for name, column in wanted.items():
        kind = rows.types.get(name) if rows.types else None
        if kind is not None and not is_fitting(kind, column.type):
            found.append(Problem(name, f"is {kind.simpleString()}, not {column.type},", rows.files))
    return found


def together(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """The same problem of several groups of files as one."""
    files: dict[tuple[str, str], tuple[LandingFile, ...]] = {}
    for problem in problems:
        key = (problem.column, problem.what)
        files[key] = files.get(key, ()) + problem.files
    return tuple(Problem(column, what, found) for (column, what), found in files.items())
