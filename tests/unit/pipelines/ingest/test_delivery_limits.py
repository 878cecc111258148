"""What a file may unpack to, and how long a line may be, is limited before Spark reads it."""

import gzip
import io
import tracemalloc
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakeshare_pipelines.errors import DeliveryError
from lakeshare_pipelines.ingest.delivery import assign_files
from lakeshare_pipelines.ingest.readable import ReadingLimits, require_readable
from tests.builders.landing import a_readings_contract, landed

MIB = 1 << 20
TWO_COLUMNS = [{"name": "id", "physicalType": "int"}, {"name": "name", "logicalType": "string"}]


def look_through(folder: Path, name: str, content: bytes, **limits: int) -> None:
    contract = a_readings_contract(folder, columns=TWO_COLUMNS)
    delivery = landed(folder, contract, {name: content})
    (file,) = assign_files(contract, delivery)
    require_readable(file, ReadingLimits(**limits))


def a_line(mib: int) -> bytes:
    return b"id,name\n1,a\n2," + b"x" * (mib * MIB - 2)


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n3,b\n"])
@pytest.mark.parametrize("name", ["readings.csv", "readings.csv.gz", "readings.jsonl"])
def test_a_line_above_the_limit_is_refused_with_its_number_and_the_setting(
    tmp_path: Path, name: str, end: bytes
) -> None:
    content = a_line(2) + b"y" + end
    packed = gzip.compress(content, 1) if name.endswith(".gz") else content
    with pytest.raises(DeliveryError) as caught:
        look_through(tmp_path, name, packed, max_line_mb=2)
    assert caught.value.subject == f"sensors/all/{name}"
    assert "line 3" in caught.value.reason
    assert "LAKESHARE_MAX_LINE_MB" in caught.value.fix


def test_lines_up_to_the_limit_are_read_however_they_end(tmp_path: Path) -> None:
    for at, end in enumerate((b"\n", b"\r\n", b"\r")):
        lines = a_line(1).replace(b"\n", end) + end
        look_through(tmp_path / str(at), "readings.csv", lines + b"3,b" + end, max_line_mb=1)


def test_a_small_file_that_unpacks_to_one_long_line_is_refused_without_being_unpacked(tmp_path: Path) -> None:
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=1) as out:
        out.write(b"id,name\n1,")
        for _ in range(128):
            out.write(b"x" * MIB)
    tracemalloc.start()
    with pytest.raises(DeliveryError, match=r"line 2 is longer than 16 MiB.*LAKESHARE_MAX_LINE_MB"):
        look_through(tmp_path, "readings.csv.gz", packed.getvalue())
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 64 * MIB


def test_a_file_that_unpacks_to_more_than_the_limit_is_refused(tmp_path: Path) -> None:
    rows = b"id,name\n" + b"1,a\n" * (9 * MIB // 4)
    with pytest.raises(DeliveryError) as caught:
        look_through(tmp_path, "readings.csv.gz", gzip.compress(rows, 1), max_unpacked_mb=8)
    assert "unpacks to more than 8 MiB" in caught.value.reason
    assert "LAKESHARE_MAX_UNPACKED_MB" in caught.value.fix


def test_parquet_is_held_to_the_size_its_footer_declares(tmp_path: Path) -> None:
    column = pa.array(["x" * 1000] * 3000)
    out = io.BytesIO()
    pq.write_table(pa.table({"id": pa.array(range(3000)), "name": column}), out, use_dictionary=False)
    look_through(tmp_path / "a", "readings.parquet", out.getvalue(), max_unpacked_mb=4)
    with pytest.raises(DeliveryError, match=r"unpacks to more than 1 MiB.*LAKESHARE_MAX_UNPACKED_MB"):
        look_through(tmp_path / "b", "readings.parquet", out.getvalue(), max_unpacked_mb=1)
