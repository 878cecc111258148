"""Row-level deletes of an Iceberg snapshot as deletion vectors, one for each data file that has deleted rows.

What cannot be said as a vector is refused, never left out. What applies to what is in delete_targets.py; the bytes are
read in position_deletes.py and puffin.py.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from lakeshare_server.errors import Unserveable
from lakeshare_server.stores import Stores
from lakeshare_server.tables.deletion_vectors import Vector, vector_of
from lakeshare_server.tables.iceberg.delete_targets import Targets
from lakeshare_server.tables.iceberg.manifests import DeleteFile
from lakeshare_server.tables.iceberg.position_deletes import PositionFile, deleted_positions
from lakeshare_server.tables.iceberg.puffin import VectorBlob, read_vectors
from lakeshare_server.tables.reason_codes import ReasonCode

if TYPE_CHECKING:
    from pyroaring import BitMap64

COMPACTION = (
    "CALL system.rewrite_data_files(table => '…', options => map('delete-file-threshold', '1', "
    "'remove-dangling-deletes', 'true')), which writes the data files anew without the deleted rows"
)


def deletion_vectors(
    stores: Stores,
    targets: Targets,
    deletes: Sequence[DeleteFile],
    root: str,
    by_equality: "Mapping[int, BitMap64] | None" = None,
) -> dict[int, Vector]:
    """The vectors of the data files with deleted rows, by number.

    `by_equality` has the rows that equality deletes delete. Deletes whose data file is gone, or whose position is
    behind its end, delete nothing.

    Raises:
        Unserveable: there are equality deletes, and no `by_equality`, or a file of deletes cannot be read.
    """
    if by_equality is None:
        require_no_equality_deletes(targets, deletes, root)
    blobs = _vector_blobs(targets, deletes, root)
    positions = deleted_positions(stores, targets, _position_files(targets, deletes, root), root)
    # A vector has taken over all that there was before it.
    vectors = positions | read_vectors(stores, list(blobs.values()), root)
    for number, rows in (by_equality or {}).items():
        own = vectors.get(number)
        vectors[number] = vector_of(rows if own is None else rows | own.rows())
    return {number: vector for number, vector in vectors.items() if vector.cardinality}


def require_no_equality_deletes(targets: Targets, deletes: Sequence[DeleteFile], root: str) -> None:
    """Refuse deletes whose rows were not looked for.

    Raises:
        Unserveable: there are some that apply to a data file.
    """
    found = [one for one in deletes if one.content == "equality" and targets.has_equal_rows(one)]
    if found:
        raise Unserveable(
            f"{root} has {len(found)} files of equality deletes, the first is {found[0].path}, which are not applied "
            "to this kind of table.",
            f"Run {COMPACTION}, and publish the table again.",
            ReasonCode.EQUALITY_DELETES,
        )


def _vector_blobs(targets: Targets, deletes: Sequence[DeleteFile], root: str) -> dict[int, VectorBlob]:
    """Where the vector of each data file is that has one; a file has one at most."""
    found: dict[int, VectorBlob] = {}
    for delete in deletes:
        if delete.format != "PUFFIN":
            continue
        path, offset, size = delete.referenced_data_file, delete.content_offset, delete.content_size_in_bytes
        if path is None or offset is None or size is None:
            raise _malformed(root, f"a deletion vector in {delete.path} does not say where it is, or whose")
        number = targets.by_path.get(path)
        if number is None:
            continue
        if number in found or targets.number_of(path, delete) is None:
            raise _malformed(root, f"{path} has two deletion vectors, or one that is older than itself")
        found[number] = VectorBlob(delete.path, offset, size, delete.rows, number, targets.files[number].rows)
    return found


def _position_files(targets: Targets, deletes: Sequence[DeleteFile], root: str) -> list[PositionFile]:
    found = []
    for delete in deletes:
        if delete.content == "position" and delete.format != "PUFFIN":
            near = targets.near(delete)
            if near:
                _require_parquet(delete, root)
                found.append(PositionFile(delete, near))
    return found


def _require_parquet(delete: DeleteFile, root: str) -> None:
    if delete.format != "PARQUET":
        raise Unserveable(
            f"{root} has position deletes in {delete.format}, which this server does not read: {delete.path}.",
            "Set write.delete.format.default to parquet and run CALL system.rewrite_position_delete_files("
            "table => '…', options => map('rewrite-all', 'true')).",
            ReasonCode.DELETE_FORMAT,
        )


def _malformed(root: str, what: str) -> Unserveable:
    return Unserveable(f"{root}: {what}, which Iceberg does not allow.", f"Run {COMPACTION}.")
