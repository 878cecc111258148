"""The deletion vectors of a snapshot as columns of its files, and what they add to its head."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_server.errors import Unserveable
from lakeshare_server.stores import Stores
from lakeshare_server.tables.deletion_vectors import TooLargeForALine, vector_columns
from lakeshare_server.tables.head import Hindrance, TableHead, TableProtocol
from lakeshare_server.tables.iceberg.delete_targets import Targets
from lakeshare_server.tables.iceberg.deletes import COMPACTION, deletion_vectors
from lakeshare_server.tables.iceberg.manifests import DeleteFile
from lakeshare_server.tables.reason_codes import ReasonCode

if TYPE_CHECKING:
    from pyroaring import BitMap64

FEATURE = "deletionVectors"


def vectors_of(
    stores: Stores,
    targets: Targets,
    deletes: Sequence[DeleteFile],
    by_equality: "Mapping[int, BitMap64]",
    root: str,
    vectors_dir: Path | None,
) -> dict[str, pa.Array]:
    """The columns of the deletion vectors, one row for each live data file; none when no row is deleted.

    Raises:
        Unserveable: the deletes cannot be read, or cannot be said as vectors.
    """
    vectors = deletion_vectors(stores, targets, deletes, root, by_equality) if deletes else {}
    try:
        return vector_columns(vectors, len(targets.files), vectors_dir)
    except TooLargeForALine as error:
        raise Unserveable(
            f"{root} has a deletion vector of {error}, which is too large for a line of an answer.",
            f"Run {COMPACTION}.",
            ReasonCode.LARGE_DELETES,
        ) from error


def with_vectors(head: TableHead, vectors: Mapping[str, pa.Array]) -> TableHead:
    """The head of a table with these columns of vectors: readers have to know of them, and parquet cannot say them."""
    if not vectors:
        return head
    files = pc.count(vectors["dv_storage"], mode="only_valid").as_py()
    return replace(
        head,
        protocol=_with_feature(head.protocol),
        configuration={**head.configuration, "delta.enableDeletionVectors": "true"},
        hindrances=(*head.hindrances, vector_hindrance(files)),
    )


def vector_hindrance(files: int) -> Hindrance:
    """Why parquet cannot carry files with vectors, of which there are so many."""
    return Hindrance(
        FEATURE,
        f"has deletion vectors on {files} files",
        f"Run {COMPACTION}; or write copy-on-write.",
        ReasonCode.ROW_LEVEL_DELETES,
    )


def _with_feature(protocol: TableProtocol) -> TableProtocol:
    # Table features are of these versions; a lower reader version of 2 meant column mapping.
    before = ("columnMapping",) if protocol.min_reader_version == 2 else ()
    reader = dict.fromkeys((*(protocol.reader_features or before), FEATURE))
    writer = dict.fromkeys((*(protocol.writer_features or ()), *reader))
    return TableProtocol(3, 7, tuple(reader), tuple(writer))
