"""Why a table, or one client, cannot be served: a code for programs, a sentence and a fix for people.

Hindrances of one response format and refusals of all of them speak with the same codes.
"""

from enum import StrEnum

REWRITE = "Run CALL system.rewrite_data_files with rewrite-all true, so that every file has today's columns."
COPY = "Share a copy of the table without the column, or with another type."


class ReasonCode(StrEnum):
    """A code with its sentence and what the provider can do."""

    sentence: str
    fix: str

    def __new__(cls, code: str, sentence: str, fix: str) -> "ReasonCode":
        member = str.__new__(cls, code)
        member._value_ = code
        member.sentence, member.fix = sentence, fix
        return member

    ROW_LEVEL_DELETES = (
        "ROW_LEVEL_DELETES",
        "Rows of live files are deleted by deletion vectors or delete files.",
        "Write with merge-on-read switched off (write.delete.mode, write.update.mode, write.merge.mode = "
        "copy-on-write) and run CALL system.rewrite_data_files with delete-file-threshold 1.",
    )
    EQUALITY_DELETES = (
        "EQUALITY_DELETES",
        "The rows that equality deletes delete were not found within the server's limits, or the deletes are in Avro "
        "or ORC, or not as Iceberg's specification says.",
        "Run CALL system.rewrite_data_files with delete-file-threshold 1 and remove-dangling-deletes true, and publish "
        "the table again.",
    )
    DELETE_FORMAT = (
        "DELETE_FORMAT",
        "Position deletes are in Avro or ORC, which this server does not read.",
        "Set write.delete.format.default to parquet and run CALL system.rewrite_position_delete_files with "
        "rewrite-all true.",
    )
    LARGE_DELETES = (
        "LARGE_DELETES",
        "A deletion vector is too large for a line, and the server has no folder to put it in.",
        "Run CALL system.rewrite_data_files with delete-file-threshold 1.",
    )
    RENAMED_COLUMNS = (
        "RENAMED_COLUMNS",
        "Live files have columns under other names than the table, so they are found by id and not by name.",
        REWRITE,
    )
    NAMES_SPELT_OTHERWISE = (
        "NAMES_SPELT_OTHERWISE",
        "A column's name has characters that Iceberg's writers spell in another way in files.",
        "Rename the column to letters, digits and underscores, with no digit first, and run CALL "
        "system.rewrite_data_files with rewrite-all true.",
    )
    FILES_WITHOUT_IDS = (
        "FILES_WITHOUT_IDS",
        "Live files carry no field ids, and the names in them do not tell which column is meant.",
        REWRITE,
    )
    WIDENED_TYPES = (
        "WIDENED_TYPES",
        "Live files have columns in a narrower type than the table.",
        REWRITE,
    )
    OTHER_TYPES_IN_FILES = (
        "OTHER_TYPES_IN_FILES",
        "Live files have columns in a type that readers do not turn into the table's.",
        REWRITE,
    )
    COLUMN_DEFAULTS = (
        "COLUMN_DEFAULTS",
        "Live files lack a column that has a default for them; recipients would read null.",
        REWRITE,
    )
    PARTITION_VALUES_NOT_IN_FILES = (
        "PARTITION_VALUES_NOT_IN_FILES",
        "Live files lack a partition column, and recipients cannot be given its values.",
        REWRITE,
    )
    TIMESTAMPS_WITHOUT_ZONE = (
        "TIMESTAMPS_WITHOUT_ZONE",
        "Timestamps without a time zone are known to the delta format only.",
        "Store them as timestamps with a zone (TIMESTAMP in Spark).",
    )
    VARIANTS = ("VARIANTS", "Variants are known to few clients.", "Share a copy that stores them as text.")
    SHREDDED_VARIANTS = (
        "SHREDDED_VARIANTS",
        "Live files have parts of variants as columns of their own.",
        "Set write.parquet.shred-variants and read.parquet.vectorization.enabled to false and run CALL "
        "system.rewrite_data_files with rewrite-all true.",
    )
    UNSUPPORTED_TYPE = ("UNSUPPORTED_TYPE", "A column has a type that the protocol cannot say.", COPY)
    VOID_COLUMN = (
        "VOID_COLUMN",
        "A column has the type void, which the kernels of clients refuse together with the whole table.",
        "Give the column a type (ALTER TABLE … ALTER COLUMN … TYPE STRING), or drop it.",
    )
    NAMES_DIFFER_BY_CASE = (
        "NAMES_DIFFER_BY_CASE",
        "Two columns have names that differ only by case, which clients take for one.",
        "Rename one of the two columns.",
    )
    BINARY_PARTITION = (
        "BINARY_PARTITION",
        "Partition values of binary columns have no text.",
        "Partition by another type.",
    )
    FILE_FORMAT = (
        "FILE_FORMAT",
        "Live data files are not in Parquet.",
        "Set write.format.default to parquet and rewrite the data files.",
    )
    DUPLICATE_FILES = (
        "DUPLICATE_FILES",
        "A data file is listed more than once: Iceberg's readers read it as often, Delta's once.",
        "Write the rows that are meant anew, with CREATE OR REPLACE TABLE … AS SELECT from the table.",
    )
    ENCRYPTED_FILES = (
        "ENCRYPTED_FILES",
        "Live data files are encrypted.",
        "Share a copy that is not encrypted.",
    )
    UNPUBLISHED_COMMITS = (
        "UNPUBLISHED_COMMITS",
        "A catalog manages the Delta table, and commits wait in its log's folder of staged commits.",
        "Have the catalog's clients publish the commits to the log, as they do after or with the next commit, or "
        "remove the staged file if the catalog rejected it.",
    )
    UNKNOWN_TYPE = (
        "UNKNOWN_TYPE",
        "A column has a type that Iceberg's specification does not define for the table's format version.",
        COPY,
    )


# They keep a table from the Delta Sharing API only: Iceberg clients read it by its own metadata.
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
