"""Deletion vectors that the server made: in the line while they are small, as files of its own when they are large."""

import hashlib
from dataclasses import replace
from pathlib import Path

import httpx
import pyarrow as pa
import pytest
from pyroaring import BitMap64

from lakeshare_server.access.allowed_locations import require_own_stores
from lakeshare_server.errors import Unserveable
from lakeshare_server.settings import ServerSettings
from lakeshare_server.storage import Stores
from lakeshare_server.tables import TableSnapshot, read_iceberg
from lakeshare_server.tables.iceberg import deletes
from lakeshare_server.tables.iceberg.deletes import (
    INLINE_BYTES,
    Vector,
    VectorTooLarge,
    add_vector_feature,
    vector_columns,
    vector_of,
)
from lakeshare_server.tables.snapshot import TableHead, TableProtocol
from tests.builders.deletion_vector import inline_positions, positions, stored_positions
from tests.builders.lake_tables import an_iceberg_table, some_rows
from tests.builders.sharing import a_provider, a_server, files

FLIGHTS = "/shares/flights/schemas/lake/tables/flights/query"
DELTA = {"delta-sharing-capabilities": "responseformat=delta;readerfeatures=deletionvectors"}
LARGE = range(0, 16 * INLINE_BYTES, 2)


def described(columns: dict[str, pa.Array], row: int) -> dict[str, object]:
    """A descriptor as lines have it, from the columns."""
    one = {name: values[row].as_py() for name, values in columns.items()}
    return {
        "offset": one["dv_offset"],
        "sizeInBytes": one["dv_size"],
        "cardinality": one["dv_cardinality"],
    } | {"pathOrInlineDv": one["dv_inline"] or one["dv_path"]}


@pytest.mark.parametrize(
    "rows", [[0], [5, 70_000], range(1000), range(0, 200_000, 3), [1 << 33, 5], range(3, 300_000)]
)
def test_a_vector_is_read_by_the_specification_alone(rows: range | list[int]) -> None:
    vector = vector_of(BitMap64(rows))
    assert positions(vector.content).tolist() == sorted(rows)
    assert vector.cardinality == len(rows)


def test_a_small_vector_goes_into_the_line(tmp_path: Path) -> None:
    columns = vector_columns({1: vector_of(BitMap64([2, 3]))}, 3, tmp_path / "vectors")
    assert columns["dv_storage"].to_pylist() == [None, "i", None]
    assert columns["dv_cardinality"].to_pylist() == [0, 2, 0]
    assert inline_positions(described(columns, 1)).tolist() == [2, 3]
    assert not (tmp_path / "vectors").exists()


@pytest.mark.parametrize(("more", "storage"), [(0, "i"), (1, "p")])
def test_the_bound_is_what_a_line_can_bear(tmp_path: Path, more: int, storage: str) -> None:
    vector = Vector(bytes(INLINE_BYTES + more), 1)
    assert vector_columns({0: vector}, 1, tmp_path)["dv_storage"].to_pylist() == [storage]


def test_many_vectors_share_what_a_table_can_bear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deletes, "ALL_INLINE_BYTES", 4000)
    vectors = {row: Vector(bytes(size), 1) for row, size in enumerate((900, 1000, 1001, 5))}
    storage = vector_columns(vectors, 4, tmp_path)["dv_storage"].to_pylist()
    assert storage == ["i", "i", "p", "i"]


def test_a_large_vector_is_a_file_named_by_its_bytes(tmp_path: Path) -> None:
    folder = tmp_path / "vectors"
    vectors = {0: vector_of(BitMap64(LARGE))}
    columns = vector_columns(vectors, 1, folder)
    [file] = folder.iterdir()
    assert columns["dv_path"].to_pylist() == [str(file)]
    assert file.name == f"{hashlib.sha256(file.read_bytes()).hexdigest()}.bin"
    assert stored_positions(described(columns, 0), file.read_bytes()).tolist() == list(LARGE)
    before = file.stat().st_mtime_ns
    assert vector_columns(vectors, 1, folder) == columns
    assert [one.stat().st_mtime_ns for one in folder.iterdir()] == [before]


def test_a_large_vector_that_a_store_has_is_not_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that may only read the store builds the index of a publication again."""
    vectors, stores = {0: vector_of(BitMap64(LARGE))}, Stores(ServerSettings(_env_file=None))
    columns = vector_columns(vectors, 1, f"{tmp_path}/vectors", stores)
    monkeypatch.setattr(stores, "write", None)
    assert vector_columns(vectors, 1, f"{tmp_path}/vectors", stores) == columns


def test_without_a_folder_a_large_vector_is_refused() -> None:
    with pytest.raises(VectorTooLarge):
        vector_columns({0: vector_of(BitMap64(LARGE))}, 1, None)


def test_without_deletes_nothing_is_added() -> None:
    head = TableHead(table_id="t", schema_string="{}", partition_columns=())
    assert vector_columns({}, 3, None) == {}
    assert add_vector_feature(head, {}) is head


@pytest.mark.parametrize(
    ("before", "features"),
    [
        (TableProtocol(), ("deletionVectors",)),
        (TableProtocol(2, 5), ("columnMapping", "deletionVectors")),
        (TableProtocol(3, 7, ("timestampNtz",), ("timestampNtz",)), ("timestampNtz", "deletionVectors")),
    ],
)
def test_the_head_says_what_readers_have_to_know(before: TableProtocol, features: tuple[str, ...]) -> None:
    head = TableHead(table_id="t", schema_string="{}", partition_columns=(), protocol=before)
    told = add_vector_feature(head, vector_columns({0: vector_of(BitMap64([1]))}, 2, None))
    assert told.protocol == TableProtocol(3, 7, features, features)
    [hindrance] = told.hindrances
    assert (hindrance.feature, hindrance.reason) == ("deletionVectors", "has deletion vectors on 1 files")


def test_a_table_in_a_bucket_has_its_large_vectors_from_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """URLs of its data are the store's, those of the vectors ours."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    provider = a_provider(tmp_path, s3_region="eu-central-1")
    table = in_a_bucket(tmp_path, provider.settings.vectors_dir)
    provider.publish("lake.flights", table)
    provider.share("lake.flights")
    token = provider.recipient()
    with a_server(provider) as server, server.client(token) as client:
        told = files(client.post(FLIGHTS, json={}, headers=DELTA))
        [add] = [file["deltaSingleAction"]["add"] for file in told]
        assert httpx.URL(add["path"]).host != httpx.URL(server.url).host
        vector = add["deletionVector"]
        assert httpx.URL(vector["pathOrInlineDv"]).host == httpx.URL(server.url).host
        content = httpx.get(vector["pathOrInlineDv"]).content
    assert stored_positions(vector, content).tolist() == list(LARGE)


def test_large_vectors_are_written_to_a_location_in_a_store_once(tmp_path: Path) -> None:
    stores, folder = Stores(ServerSettings(_env_file=None)), f"{tmp_path}/shared/vectors"
    columns = [vector_columns({0: vector_of(BitMap64(LARGE))}, 1, folder, stores) for _ in range(2)]
    [path] = columns[0]["dv_path"].to_pylist()
    assert columns[0] == columns[1]
    assert [found.location for found in stores.list(folder)] == [path]
    names = {"offset": "dv_offset", "sizeInBytes": "dv_size", "cardinality": "dv_cardinality"}
    vector = {name: columns[0][column][0].as_py() for name, column in names.items()}
    assert stored_positions(vector, stores.read(path)).tolist() == list(LARGE)


def in_a_bucket(folder: Path, vectors_dir: Path) -> TableSnapshot:
    """A table of one file with a large vector, as if it were in a bucket."""
    state = an_iceberg_table(folder / "lake", some_rows(days=1), partitioned_by=()).state()
    read = read_iceberg(state.metadata_location, state.snapshot_id)
    columns = vector_columns({0: vector_of(BitMap64(LARGE))}, 1, vectors_dir)
    place = read.files.schema.get_field_index("path")
    moved = read.files.set_column(place, "path", pa.array(["s3://lake/flights/data/one.parquet"]))
    for name, values in columns.items():
        moved = moved.append_column(name, values)
    return replace(
        read, location="s3://lake/flights", files=moved, head=add_vector_feature(read.head, columns)
    )


def test_only_the_folder_of_vectors_is_lent_to_tables_elsewhere(tmp_path: Path) -> None:
    provider = a_provider(tmp_path)
    own = provider.settings.vectors_dir
    require_own_stores("t", "s3://lake/t", {"s3://lake", str(own)}, provider.settings)
    for other in (own.parent, own / "deeper", own.with_name("vectors2"), provider.settings.index_dir):
        with pytest.raises(Unserveable, match="on the server's own disk"):
            require_own_stores("t", "s3://lake/t", {"s3://lake", str(other)}, provider.settings)
