"""Manifests of every format version and codec: each file with what is inherited, and never fewer files."""

from pathlib import Path

import pytest

from lakeshare_server.errors import Unserveable
from lakeshare_server.settings import ServerSettings
from lakeshare_server.storage import Stores
from lakeshare_server.tables.iceberg import manifests
from lakeshare_server.tables.iceberg.manifests import DeleteFile, LiveFiles, live_files
from tests.builders.avro_blocks import compress_avro
from tests.builders.campaign import campaign_size
from tests.builders.iceberg_manifests import SNAPSHOT, ToldSnapshot, a_manifest, a_snapshot, an_entry


def read(snapshot: ToldSnapshot) -> LiveFiles:
    stores = Stores(ServerSettings())
    return live_files(stores, snapshot, "/t")  # type: ignore[arg-type]  # an id and a location is all


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("codec", ["null", "deflate", "zstandard"])
def test_data_files_are_what_their_manifests_say(tmp_path: Path, version: int, codec: str) -> None:
    entries = [an_entry(number, snapshot_id=number) for number in (1, 2, 300)]
    manifest = a_manifest(tmp_path / "m.avro", entries, version=version, codec=codec)
    files = read(a_snapshot(tmp_path, [manifest], version=version)).data
    assert files.columns.select(["path", "format", "rows", "size", "spec_id", "snapshot_id"]).to_pylist() == [
        {
            "path": f"s3://lake/t/{number}.parquet",
            "format": "PARQUET",
            "rows": 10 * number,
            "size": 1000 + number,
            "spec_id": 3,
            "snapshot_id": number,
        }
        for number in (1, 2, 300)
    ]
    assert files.null_counts[2].to_pylist() == [1, 2, 300]
    assert files.nan_counts == {}
    assert files.lower[1].to_pylist() == [number.to_bytes(8, "little") for number in (1, 2, 300)]
    assert (files.lower[2].to_pylist(), 2 in files.upper) == ([b"a"] * 3, False)
    assert files.partition[3, 1007].to_pylist() == [1, 2, 300]
    assert files.column("key_metadata").null_count == 3


def test_many_manifests_are_one_list_of_files_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than are read at once, of more files than become columns at once."""
    monkeypatch.setattr(manifests, "CHUNK_ROWS", 700)
    written = []
    for place in range(50):
        entries = [an_entry(place * 20 + number) for number in range(1, 21)]
        written.append(a_manifest(tmp_path / f"{place}.avro", entries))
    files = read(a_snapshot(tmp_path, written)).data
    assert files.column("size").to_pylist() == [1000 + number for number in range(1, 1_001)]
    assert files.null_counts[2].to_pylist() == list(range(1, 1_001))


def test_added_files_inherit_what_others_say_themselves(tmp_path: Path) -> None:
    """Iceberg spec, "Sequence Number Inheritance" """
    entries = [
        an_entry(1),
        an_entry(2, status=0, snapshot_id=7, sequence_number=2),
        an_entry(3, status=2, snapshot_id=SNAPSHOT),
    ]
    files = read(a_snapshot(tmp_path, [a_manifest(tmp_path / "m.avro", entries)])).data
    assert files.columns.select(["size", "snapshot_id", "sequence_number"]).to_pylist() == [
        {"size": 1001, "snapshot_id": SNAPSHOT, "sequence_number": 5},
        {"size": 1002, "snapshot_id": 7, "sequence_number": 2},
    ]
    assert files.null_counts[2].to_pylist() == [1, 2]


def test_files_of_v1_have_the_sequence_number_zero(tmp_path: Path) -> None:
    manifest = a_manifest(tmp_path / "m.avro", [an_entry(1, snapshot_id=7)], version=1)
    files = read(a_snapshot(tmp_path, [manifest], version=1)).data
    assert files.columns.select(["snapshot_id", "sequence_number"]).to_pylist() == [
        {"snapshot_id": 7, "sequence_number": 0}
    ]


def test_rows_are_numbered_on_from_the_manifests_first(tmp_path: Path) -> None:
    """Iceberg spec, "Row Lineage": only files without a number of their own use numbers up"""
    entries = [an_entry(1), an_entry(2, status=2), an_entry(3, first_row_id=7), an_entry(4)]
    manifest = a_manifest(tmp_path / "m.avro", entries, version=3)
    files = read(a_snapshot(tmp_path, [manifest], version=3, first_row_id=1000)).data
    assert files.column("first_row_id").to_pylist() == [1000, 7, 1010]


def test_delete_files_are_told_whole(tmp_path: Path) -> None:
    from pyiceberg.manifest import DataFileContent, FileFormat

    path_id = 2_147_483_546
    entries = [
        an_entry(
            1,
            content=DataFileContent.POSITION_DELETES,
            lower_bounds={path_id: b"s3://lake/a"},
            upper_bounds={path_id: b"s3://lake/\xc3"},
        ),
        an_entry(
            2,
            content=DataFileContent.POSITION_DELETES,
            file_format=FileFormat.PUFFIN,
            sequence_number=4,
            referenced_data_file="s3://lake/a",
            content_offset=4,
            content_size_in_bytes=70_000,
        ),
        an_entry(3, content=DataFileContent.EQUALITY_DELETES, equality_ids=[1, 3]),
        an_entry(4, status=2, content=DataFileContent.EQUALITY_DELETES),
    ]
    deletes = a_manifest(tmp_path / "d.avro", entries, version=3, deletes=True)
    live = read(a_snapshot(tmp_path, [deletes], version=3))
    assert len(live.data) == 0
    said = {"spec_id": 3, "format": "PARQUET", "sequence_number": 5}
    assert live.deletes == [
        DeleteFile(
            **said,
            content="position",
            path="s3://lake/t/1.parquet",
            partition=((1007, 1),),
            rows=10,
            size_bytes=1001,
            lowest_path="s3://lake/a",
            # A bound that is cut inside a character bounds nothing.
            highest_path=None,
        ),
        DeleteFile(
            **{**said, "format": "PUFFIN", "sequence_number": 4},
            content="position",
            path="s3://lake/t/2.parquet",
            partition=((1007, 2),),
            rows=20,
            size_bytes=1002,
            referenced_data_file="s3://lake/a",
            content_offset=4,
            content_size_in_bytes=70_000,
        ),
        DeleteFile(
            **said,
            content="equality",
            path="s3://lake/t/3.parquet",
            partition=((1007, 3),),
            rows=30,
            size_bytes=1003,
            equality_ids=(1, 3),
        ),
    ]


def test_snappy_is_read_and_its_checksum_is_looked_at(tmp_path: Path) -> None:
    file = tmp_path / "m.avro"
    manifest = a_manifest(file, [an_entry(1), an_entry(2)], codec="null")
    content = compress_avro(file.read_bytes(), "snappy")
    file.write_bytes(content)
    snapshot = a_snapshot(tmp_path, [manifest])
    assert read(snapshot).data.column("rows").to_pylist() == [10, 20]
    file.write_bytes(content[:-17] + bytes([content[-17] ^ 1]) + content[-16:])
    with pytest.raises(Unserveable, match="a block does not have its checksum"):
        read(snapshot)


def test_a_manifest_that_is_cut_off_anywhere_is_refused(tmp_path: Path) -> None:
    """Also between two blocks, where what is left is a whole file: then it has fewer files than its list says."""
    file = tmp_path / "m.avro"
    manifest = a_manifest(file, [an_entry(1), an_entry(2)])
    snapshot, content = a_snapshot(tmp_path, [manifest]), file.read_bytes()
    reasons = set()
    between = content.rindex(content[-16:], 0, -16) + 16
    for length in [*range(0, len(content), 29), between, len(content) - 1]:
        file.write_bytes(content[:length])
        with pytest.raises(Unserveable, match=f"snapshot {SNAPSHOT} of /t cannot be read") as refused:
            read(snapshot)
        reasons.add(str(refused.value).partition("cannot be read: ")[2].partition(".")[0])
    assert "it has 1 files, its manifest list says 2" in reasons
    assert "it does not begin like an Avro file" in reasons


def test_where_files_are_not_counted_the_length_tells(tmp_path: Path) -> None:
    """In v1 the counts of a manifest list are optional."""
    file = tmp_path / "m.avro"
    manifest = a_manifest(file, [an_entry(1, snapshot_id=1), an_entry(2, snapshot_id=1)], version=1)
    snapshot = a_snapshot(tmp_path, [manifest], version=1, added_files_count=None)
    assert len(read(snapshot).data) == 2
    content = file.read_bytes()
    file.write_bytes(content[: content.rindex(content[-16:], 0, -16) + 16])
    with pytest.raises(Unserveable, match="bytes, its manifest list says"):
        read(snapshot)


@pytest.mark.campaign
def test_changed_bytes_never_give_fewer_files_or_another_error(tmp_path: Path) -> None:
    file = tmp_path / "m.avro"
    manifest = a_manifest(file, [an_entry(1), an_entry(2)], codec="null")
    snapshot, content = a_snapshot(tmp_path, [manifest]), file.read_bytes()
    refused = 0
    places = range(0, len(content), campaign_size(in_ci=19, in_campaign=1))
    for place in places:
        changed = bytearray(content)
        changed[place] ^= (1, 128, 255)[place % 3]
        file.write_bytes(changed)
        try:
            assert len(read(snapshot).data) == 2
        except Unserveable:
            refused += 1
    assert refused > len(places) // 4


@pytest.mark.parametrize("content", [b"", b"no Avro", b"Obj\x01"])
def test_what_is_no_manifest_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "m.avro"
    snapshot = a_snapshot(tmp_path, [a_manifest(file, [an_entry()])])
    file.write_bytes(content)
    with pytest.raises(Unserveable, match=r"The manifest .*m\.avro of snapshot 77"):
        read(snapshot)
    file.unlink()
    with pytest.raises(
        Unserveable, match=r"m\.avro .*it is missing or not readable.*metadata folder is whole"
    ):
        read(snapshot)
    Path(snapshot.manifest_list).unlink()
    with pytest.raises(Unserveable, match=r"list\.avro .*it is missing or not readable"):
        read(snapshot)
