"""What recipients are told of an Iceberg table in an answer with changes, which its publications record."""

from dataclasses import replace

from lakeshare_server.tables.delta_schema import parquet_format_schema
from lakeshare_server.tables.head import TableHead, TableProtocol
from lakeshare_server.tables.iceberg.vectors import FEATURE as DELETION_VECTORS

PROPERTY = "delta.enableChangeDataFeed"
FEATURE = "changeDataFeed"
# The first writer version of Delta that knows the feed (PROTOCOL.md, "Writer Version Requirements").
WRITER_VERSION = 4
# What data files may need of their readers; change files are written with the names and types of their version.
OF_DATA_FILES = frozenset({"columnMapping", "typeWidening", DELETION_VECTORS})
ROWS_ONLY = TableProtocol(min_writer_version=WRITER_VERSION)
PROPERTIES_OF_DATA_FILES = (
    "delta.columnMapping.",
    "delta.enableTypeWidening",
    "delta.enableDeletionVectors",
)


def change_head(head: TableHead) -> TableHead:
    """The head of a snapshot, as answers with changes tell it.

    Deletion vectors of the snapshot are no hindrance: those of the files that are told are, see `VersionChanges`.
    """
    return replace(
        head,
        protocol=_with_feed(head.protocol),
        configuration={**head.configuration, PROPERTY: "true"},
        hindrances=tuple(one for one in head.hindrances if one.feature != DELETION_VECTORS),
    )


def head_of_rows(head: TableHead) -> TableHead:
    """The head of an answer in which all files are change files: more clients read them than the table itself.

    The kernel of the Python client (delta-kernel-rust-sharing-wrapper 0.3.3) fails on change files of a mapped table.
    """
    configuration = {
        key: value
        for key, value in head.configuration.items()
        if not key.startswith(PROPERTIES_OF_DATA_FILES)
    }
    return replace(
        head,
        schema_string=parquet_format_schema(head.schema_string),
        protocol=_without(head.protocol),
        configuration=configuration,
        hindrances=tuple(one for one in head.hindrances if one.feature not in OF_DATA_FILES),
    )


def _without(protocol: TableProtocol) -> TableProtocol:
    reader = tuple(one for one in protocol.reader_features or () if one not in OF_DATA_FILES)
    writer = tuple(one for one in protocol.writer_features or () if one not in OF_DATA_FILES)
    return replace(protocol, reader_features=reader, writer_features=writer) if reader else ROWS_ONLY


def _with_feed(protocol: TableProtocol) -> TableProtocol:
    writer = protocol.writer_features
    return replace(
        protocol,
        min_writer_version=max(protocol.min_writer_version, WRITER_VERSION),
        writer_features=None if writer is None else tuple(dict.fromkeys((*writer, FEATURE))),
    )
