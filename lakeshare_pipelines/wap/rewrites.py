"""Which rewrite of an Iceberg table takes away what keeps clients from it, chosen by the reason codes.

Choosing only; `iceberg_rewriting.py` has it done.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from lakeshare_server.tables.reason_codes import ReasonCode
from lakeshare_server.tables.serveability import Verdict

# Deleted rows: new files without them, and no more such deletes from then on.
OF_DELETES = frozenset(
    {ReasonCode.ROW_LEVEL_DELETES, ReasonCode.EQUALITY_DELETES, ReasonCode.DELETE_FORMAT}
    | {ReasonCode.LARGE_DELETES}
)
# Older columns in files: all of them anew, since no procedure knows which files have them.
OF_COLUMNS = frozenset(
    {ReasonCode.RENAMED_COLUMNS, ReasonCode.FILES_WITHOUT_IDS, ReasonCode.WIDENED_TYPES}
    | {ReasonCode.OTHER_TYPES_IN_FILES, ReasonCode.COLUMN_DEFAULTS}
    | {ReasonCode.PARTITION_VALUES_NOT_IN_FILES}
)
OF_FORMAT = frozenset({ReasonCode.FILE_FORMAT})
SOLVABLE = OF_DELETES | OF_COLUMNS | OF_FORMAT

COPY_ON_WRITE = {f"write.{verb}.mode": "copy-on-write" for verb in ("delete", "update", "merge")}
IN_PARQUET = {"write.format.default": "parquet"}
DELETES_IN_PARQUET = {"write.delete.format.default": "parquet"}

ALL_FILES = {"rewrite-all": "true"}
# No file is too small or too large: those without deleted rows stay as they are.
FILES_WITH_DELETES = {
    "delete-file-threshold": "1",
    "min-file-size-bytes": "0",
    "max-file-size-bytes": str(2**63 - 1),
}
# PyIceberg 0.12 refuses a scan that meets equality deletes, also those that apply to no file any more.
NO_DELETES_LEFT = {"remove-dangling-deletes": "true"}


@dataclass(frozen=True)
class Rewrite:
    """A rewrite of data files: the table's properties before it, and the options of Iceberg's procedure."""

    properties: Mapping[str, str]
    options: Mapping[str, str]


def codes_in_the_way(promised: Collection[str], verdicts: Iterable[Verdict]) -> frozenset[str]:
    """The codes that a rewrite takes away, of promised clients that could read the table then.

    For a client that something else keeps from the table, too, nothing is rewritten.
    """
    of_clients = [[why.code for why in one.refused_for] for one in verdicts if one.id in promised]
    return frozenset(code for codes in of_clients if SOLVABLE.issuperset(codes) for code in codes if code)


def rewrite_for(codes: Collection[str]) -> Rewrite:
    """The one rewrite that takes away these codes, all of `SOLVABLE`."""
    found = frozenset(codes)
    properties: dict[str, str] = {}
    # A rewrite of all files leaves no deleted rows either.
    options = FILES_WITH_DELETES if found <= OF_DELETES else ALL_FILES
    if found & OF_DELETES:
        properties |= COPY_ON_WRITE
        options = options | NO_DELETES_LEFT
    if ReasonCode.DELETE_FORMAT in found:
        properties |= DELETES_IN_PARQUET
    if found & OF_FORMAT:
        properties |= IN_PARQUET
    return Rewrite(properties, options)
