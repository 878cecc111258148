"""Which files of deletion vectors the Python client reads: those with the version byte of Delta, no Puffin files."""

import json
import struct
import zlib
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.builders.deletion_vector import positions, serialized

DELETED = [1, 3, 8]


def test_vectors_in_deltas_files_are_read(tmp_path: Path) -> None:
    assert read_with_vector_behind(tmp_path, b"\x01") == [0, 2, 4, 5, 6, 7, 9]


def test_puffin_files_are_refused_for_their_first_byte(tmp_path: Path) -> None:
    """The reason for vectors of our own: at the offset both files have the same bytes."""
    with pytest.raises(Exception, match="Invalid version"):
        read_with_vector_behind(tmp_path, b"PFA1")


def read_with_vector_behind(folder: Path, begin: bytes) -> list[int]:
    """The rows of a local table whose vector stands in a file that begins so."""
    import delta_kernel_rust_sharing_wrapper as kernel

    table = folder / "table"
    write_deltalake(table, pa.table({"n": list(range(10))}))
    content = serialized(DELETED)
    vectors = folder / "vectors.bin"
    vectors.write_bytes(
        begin + struct.pack(">I", len(content)) + content + struct.pack(">I", zlib.crc32(content))
    )
    describe(table, vectors, len(begin), content)
    interface = kernel.PythonInterface(table.as_uri())
    scan = kernel.ScanBuilder(kernel.Table(table.as_uri()).snapshot(interface)).build()
    return pa.Table.from_batches(scan.execute(interface)).column("n").to_pylist()


def describe(table: Path, vectors: Path, offset: int, content: bytes) -> None:
    """Say in the table's only commit that its file has this vector."""
    commit = table / "_delta_log" / f"{0:020d}.json"
    actions = [json.loads(line) for line in commit.read_text().splitlines()]
    for action in actions:
        if "protocol" in action:
            features = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
            action["protocol"] = {"minReaderVersion": 3, "minWriterVersion": 7, **features}
        elif "add" in action:
            action["add"]["deletionVector"] = {
                "storageType": "p",
                "pathOrInlineDv": vectors.as_uri(),
                "offset": offset,
                "sizeInBytes": len(content),
                "cardinality": len(positions(content)),
            }
    commit.write_text("\n".join(json.dumps(action) for action in actions))
