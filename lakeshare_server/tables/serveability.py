"""Which clients can read a table, in which format, and why not: the same for tables of all formats.

Computed from the head in the file index; requests decide with the same `missing_features`. Contracts name clients by
their ids, so an id never changes.
"""

from collections.abc import Set
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from lakeshare_server.errors import Unserveable
from lakeshare_server.tables.snapshot import TableHead

REWRITE = "Run CALL system.rewrite_data_files with rewrite-all true, so that every file has today's columns."
COPY = "Share a copy of the table without the column, or with another type."


class ReasonCode(StrEnum):
    """A code with its sentence and what the provider can do."""

    sentence: str
    fix: str

    def __new__(cls, code: str, sentence: str, fix: str) -> "ReasonCode":
        member = str.__new__(cls, code)
        member._value_, member.sentence, member.fix = code, sentence, fix
        return member

    def error(self, reason: str) -> Unserveable:
        return Unserveable(reason, self.fix, self)

    # fmt: off
    ROW_LEVEL_DELETES = (
        "ROW_LEVEL_DELETES", "Rows of live files are deleted by deletion vectors or delete files.",
        "Write with merge-on-read switched off (write.delete.mode, write.update.mode, write.merge.mode = "
        "copy-on-write) and run CALL system.rewrite_data_files with delete-file-threshold 1.",
    )
    EQUALITY_DELETES = (
        "EQUALITY_DELETES", "The rows that equality deletes delete were not found within the server's limits, or the "
        "deletes are in Avro or ORC, or not as Iceberg's specification says.",
        "Run CALL system.rewrite_data_files with delete-file-threshold 1 and remove-dangling-deletes true, and "
        "publish the table again.",
    )
    DELETE_FORMAT = (
        "DELETE_FORMAT", "Position deletes are in Avro or ORC, which this server does not read.",
        "Set write.delete.format.default to parquet and run CALL system.rewrite_position_delete_files with "
        "rewrite-all true.",
    )
    LARGE_DELETES = (
        "LARGE_DELETES", "A deletion vector is too large for a line, and the server has no folder to put it in.",
        "Run CALL system.rewrite_data_files with delete-file-threshold 1.",
    )
    RENAMED_COLUMNS = (
        "RENAMED_COLUMNS", "Live files have columns under other names than the table, so they are found by id and not "
        "by name.",
        REWRITE,
    )
    NAMES_SPELT_OTHERWISE = (
        "NAMES_SPELT_OTHERWISE", "A column's name has characters that Iceberg's writers spell in another way in "
        "files.",
        "Rename the column to letters, digits and underscores, with no digit first, and run CALL "
        "system.rewrite_data_files with rewrite-all true.",
    )
    FILES_WITHOUT_IDS = (
        "FILES_WITHOUT_IDS", "Live files carry no field ids, and the names in them do not identify the columns.",
        REWRITE,
    )
    WIDENED_TYPES = "WIDENED_TYPES", "Live files have columns in a narrower type than the table.", REWRITE
    OTHER_TYPES_IN_FILES = (
        "OTHER_TYPES_IN_FILES", "Live files have columns in a type that readers do not turn into the table's.",
        REWRITE,
    )
    COLUMN_DEFAULTS = (
        "COLUMN_DEFAULTS", "Live files lack a column that has a default for them; recipients would read null.",
        REWRITE,
    )
    PARTITION_VALUES_NOT_IN_FILES = (
        "PARTITION_VALUES_NOT_IN_FILES", "Live files lack a partition column, and recipients cannot be given its "
        "values.",
        REWRITE,
    )
    TIMESTAMPS_WITHOUT_ZONE = (
        "TIMESTAMPS_WITHOUT_ZONE", "Timestamps without a time zone are known to the delta format only.",
        "Store them as timestamps with a zone (TIMESTAMP in Spark).",
    )
    VARIANTS = "VARIANTS", "Variants are known to few clients.", "Share a copy that stores them as text."
    SHREDDED_VARIANTS = (
        "SHREDDED_VARIANTS", "Live files have parts of variants as columns of their own.",
        "Set write.parquet.shred-variants and read.parquet.vectorization.enabled to false and run CALL "
        "system.rewrite_data_files with rewrite-all true.",
    )
    UNSUPPORTED_TYPE = "UNSUPPORTED_TYPE", "A column has a type that the protocol cannot say.", COPY
    VOID_COLUMN = (
        "VOID_COLUMN", "A column has the type void, which the kernels of clients refuse together with the whole "
        "table.",
        "Give the column a type (ALTER TABLE … ALTER COLUMN … TYPE STRING), or drop it.",
    )
    NAMES_DIFFER_BY_CASE = (
        "NAMES_DIFFER_BY_CASE", "Two columns have names that differ only by case, which clients take for one.",
        "Rename one of the two columns.",
    )
    BINARY_PARTITION = (
        "BINARY_PARTITION", "Partition values of binary columns have no text.", "Partition by another type.",
    )
    FILE_FORMAT = (
        "FILE_FORMAT", "Live data files are not in Parquet.",
        "Set write.format.default to parquet and rewrite the data files.",
    )
    DUPLICATE_FILES = (
        "DUPLICATE_FILES", "A data file is listed more than once: Iceberg's readers read it as often, Delta's once.",
        "Write the rows that are meant anew, with CREATE OR REPLACE TABLE … AS SELECT from the table.",
    )
    ENCRYPTED_FILES = "ENCRYPTED_FILES", "Live data files are encrypted.", "Share a copy that is not encrypted."
    UNPUBLISHED_COMMITS = (
        "UNPUBLISHED_COMMITS", "A catalog manages the Delta table, and commits wait in its log's folder of staged "
        "commits.",
        "Have the catalog's clients publish the commits to the log, as they do after or with the next commit, or "
        "remove the staged file if the catalog rejected it.",
    )
    UNKNOWN_TYPE = (
        "UNKNOWN_TYPE", "A column has a type that Iceberg's specification does not define for the table's format "
        "version.",
        COPY,
    )
    # fmt: on


# These reasons apply to the Delta Sharing API only: Iceberg clients read such tables by their own metadata.
READ_BY_ICEBERG_CLIENTS = frozenset(
    {
        ReasonCode.EQUALITY_DELETES,
        ReasonCode.DELETE_FORMAT,
        ReasonCode.LARGE_DELETES,
        ReasonCode.FILES_WITHOUT_IDS,
        ReasonCode.COLUMN_DEFAULTS,
        ReasonCode.PARTITION_VALUES_NOT_IN_FILES,
        ReasonCode.UNSUPPORTED_TYPE,
        ReasonCode.NAMES_DIFFER_BY_CASE,
        ReasonCode.FILE_FORMAT,
        ReasonCode.DUPLICATE_FILES,
    }
)


@dataclass(frozen=True)
class Client:
    """A client of the protocol: the response format it reads and the reader features it announces."""

    id: str
    name: str
    response_format: str
    features: frozenset[str] = frozenset()


# From the sources of delta-sharing 1.4 for Python and delta-sharing-spark 4.0.
PYTHON_FEATURES = frozenset({"deletionvectors", "columnmapping", "timestampntz"})
SPARK_FEATURES = PYTHON_FEATURES | {
    "typewidening",
    "typewidening-preview",
    "varianttype",
    "varianttype-preview",
}
CLIENTS = (
    Client("python-parquet", "Python, parquet format", "parquet"),
    Client("python-delta", "Python, delta format", "delta", PYTHON_FEATURES),
    Client("spark", "Spark, delta format", "delta", SPARK_FEATURES),
)
ICEBERG_REST_ID, ICEBERG_REST = "iceberg-rest", "Iceberg REST"
# Allowed by configuration for each share of a table, so a table's own state does not decide it.
DIRECTORY_ID, DIRECTORY_ACCESS = "directory", "directory access"


@dataclass(frozen=True)
class Refusal:
    """A reason why a client cannot read a table, and what the provider can do; `code` is one of `ReasonCode`."""

    reason: str
    fix: str | None = None
    code: str | None = None


@dataclass(frozen=True)
class Verdict:
    """How one client reads a table: `served_as` is parquet, delta, iceberg or files, None if it cannot.

    `features` are the reader features that are needed. `refused_for` has all reasons; responses to the client give the
    first.
    """

    id: str
    client: str
    served_as: str | None
    features: tuple[str, ...] = ()
    refused_for: tuple[Refusal, ...] = ()

    @property
    def code(self) -> str | None:
        return self.refused_for[0].code if self.refused_for else None

    def as_json(self) -> dict[str, Any]:
        """The verdict in JSON types; `code`, `reason` and `fix` are those of the first reason."""
        refusals = [asdict(refusal) for refusal in self.refused_for]
        first = refusals[0] if refusals else dict.fromkeys(("code", "reason", "fix"))
        lists = {"features": list(self.features), "refused_for": refusals}
        return {"id": self.id, "client": self.client, "served_as": self.served_as, **first, **lists}

    def __str__(self) -> str:
        if self.served_as is not None:
            needs = f", needs {', '.join(self.features)}" if self.features else ""
            return f"yes, as {self.served_as}{needs}"
        first = self.refused_for[0]
        code = f" [{first.code}]" if first.code else ""
        return f"no, {first.reason.rstrip('.')}{code}" + (f". {first.fix}" if first.fix else "")


def needed_features(head: TableHead) -> list[str]:
    features = (hindrance.feature for hindrance in head.hindrances)
    return list(dict.fromkeys(feature for feature in features if feature is not None))


def missing_features(head: TableHead, announced: Set[str]) -> list[str]:
    """The needed features that a client did not announce; `announced` is in lower case."""
    return [feature for feature in needed_features(head) if feature.lower() not in announced]


def clients_of(table_format: str) -> tuple[str, ...]:
    """The ids of the clients that a contract can name for tables of a format."""
    clients = tuple(client.id for client in CLIENTS)
    return (*clients, ICEBERG_REST_ID) if table_format == "iceberg" else clients


def judge_serveability(table_format: str, head: TableHead) -> list[Verdict]:
    if table_format == "iceberg" or head.has_iceberg_metadata:
        iceberg_rest = Verdict(ICEBERG_REST_ID, ICEBERG_REST, "iceberg")
    else:
        refused_for = (Refusal("it is no Iceberg table"),)
        iceberg_rest = Verdict(ICEBERG_REST_ID, ICEBERG_REST, None, refused_for=refused_for)
    return [*(_verdict(client, head) for client in CLIENTS), iceberg_rest]


def _verdict(client: Client, head: TableHead) -> Verdict:
    obstacles, needed = head.hindrances, tuple[str, ...]()
    if client.response_format != "parquet":
        missing, needed = missing_features(head, client.features), tuple(needed_features(head))
        obstacles = tuple(hindrance for hindrance in head.hindrances if hindrance.feature in missing)
    if obstacles:
        refusals = tuple(Refusal(f"it {one.reason}", one.fix, one.code) for one in obstacles)
        return Verdict(client.id, client.name, None, refused_for=refusals)
    return Verdict(client.id, client.name, client.response_format, needed)


def refuse_all_clients(why: Unserveable) -> list[Verdict]:
    """The verdicts for a state that cannot be published, from the error."""
    clients = [*((client.id, client.name) for client in CLIENTS), (ICEBERG_REST_ID, ICEBERG_REST)]
    refusal = Refusal(why.reason, why.fix, why.code)
    return [Verdict(id_, name, None, refused_for=(refusal,)) for id_, name in clients]


def is_read_by_iceberg_clients(why: Unserveable) -> bool:
    """Whether the error applies to the Delta Sharing API only."""
    return why.code in READ_BY_ICEBERG_CLIENTS


def refuse_sharing_clients(why: Unserveable) -> list[Verdict]:
    """The verdicts for a state that only Iceberg clients can read, from the error of the Delta Sharing API."""
    return [*refuse_all_clients(why)[:-1], Verdict(ICEBERG_REST_ID, ICEBERG_REST, "iceberg")]


def directory_verdict(path: str, refusal: str | None) -> Verdict:
    """The verdict on directory access to a shared table, from the result of `directory_refusal`."""
    client = f"{DIRECTORY_ACCESS} to {path}"
    if refusal is None:
        return Verdict(DIRECTORY_ID, client, "files")
    return Verdict(DIRECTORY_ID, client, None, refused_for=(Refusal(refusal),))
