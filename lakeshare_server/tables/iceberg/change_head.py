"""What recipients are told of an Iceberg table in an answer with changes, which its publications record."""

from dataclasses import replace

from lakeshare_server.tables.head import TableHead, TableProtocol
from lakeshare_server.tables.iceberg.vectors import FEATURE as DELETION_VECTORS

PROPERTY = "delta.enableChangeDataFeed"
FEATURE = "changeDataFeed"
# The first writer version of Delta that knows the feed (PROTOCOL.md, "Writer Version Requirements").
WRITER_VERSION = 4


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


def _with_feed(protocol: TableProtocol) -> TableProtocol:
    writer = protocol.writer_features
    return replace(
        protocol,
        min_writer_version=max(protocol.min_writer_version, WRITER_VERSION),
        writer_features=None if writer is None else tuple(dict.fromkeys((*writer, FEATURE))),
    )
