"""Before Spark reads them, files are checked: codecs, XML and Avro of any size in pieces, endings that are refused."""

import io
import os
from pathlib import Path

import pytest

from lakeshare_pipelines.contracts.difference import compare_contracts
from lakeshare_pipelines.errors import DeliveryError
from lakeshare_pipelines.ingest.compression import CODECS, PIECE_BYTES, CutOff, Damaged, unpack
from lakeshare_pipelines.ingest.delivery import assign_files
from lakeshare_pipelines.ingest.readable import ReadableFile, ReadingLimits, guess_row_tag, require_readable
from lakeshare_server.tables.iceberg import avro
from lakeshare_server.tables.iceberg.avro import AvroError, check_container, read_container
from tests.builders.avro_blocks import compress_avro
from tests.builders.landing import a_readings_contract, avro_bytes, landed

TWO_COLUMNS = [{"name": "id", "physicalType": "int"}, {"name": "name", "logicalType": "string"}]
ROWS = {"rowTag": "row"}


def look_through(
    folder: Path, name: str, content: bytes, reading: object = ROWS, **limits: int
) -> ReadableFile:
    contract = a_readings_contract(folder, columns=TWO_COLUMNS, reading=reading)  # type: ignore[arg-type]  # as YAML
    (file,) = assign_files(contract, landed(folder, contract, {name: content}))
    return require_readable(file, ReadingLimits(**limits))


@pytest.mark.parametrize("suffix", CODECS)
def test_a_codec_unpacks_in_pieces_and_finds_what_is_cut_off_or_of_another_kind(suffix: str) -> None:
    codec, content = CODECS[suffix], os.urandom(PIECE_BYTES) + b"id,name\n" * 50_000
    packed = codec.pack(content)
    assert unpack(codec, packed, len(content)) == content
    assert unpack(codec, codec.pack(bytes(4 * PIECE_BYTES)), PIECE_BYTES) == bytes(2 * PIECE_BYTES)
    for end in (-9, len(packed) // 2, 2):
        with pytest.raises(CutOff, match=f"the {codec.name} data ends too early"):
            unpack(codec, packed[:end], len(content))
    with pytest.raises(Damaged):
        unpack(codec, b"id,name\n1,a\n" * 100, PIECE_BYTES)


@pytest.mark.parametrize(
    ("name", "reason", "fix"),
    [
        (
            "readings.csv.lz4",
            "is compressed with LZ4, which is not read",
            r"\.csv, \.tsv, \.jsonl.*followed by \.gz, \.bz2",
        ),
        ("readings.json.xz", "is compressed with xz, which is not read", r"\.zst, \.deflate"),
        ("readings.zip", "is compressed with zip, which is not read", r"\.parquet, \.orc, \.avro"),
        ("readings.avro.gz", "is compressed as a whole, and its format compresses within", r"\.avro"),
        ("readings.txt", "is of no known format", r"Known are \.csv"),
        (
            "readings.xml",
            r"is XML, and table sensors\.readings has no rowTag",
            r"rowTag in reading of readings in sens",
        ),
    ],
)
def test_a_file_that_is_not_read_is_refused_with_the_endings_that_are(
    tmp_path: Path, name: str, reason: str, fix: str
) -> None:
    contract = a_readings_contract(tmp_path, columns=TWO_COLUMNS)
    with pytest.raises(DeliveryError, match=f"{name} {reason}.*{fix}"):
        landed(tmp_path, contract, {name: b"x"})


def test_rows_of_xml_are_counted_with_their_columns_in_pieces_of_any_size(tmp_path: Path) -> None:
    row = '<s:row s:id="1" xmlns:s="urn:s"><name lang="en">a<b>c</b></name><![CDATA[<s:row>]]></s:row><!-- <s:row> -->'
    content = f"\ufeff<all><rows>{row * 30_000}</rows><row/></all>".encode()
    assert len(content) > 3 << 20
    found = look_through(tmp_path, "readings.xml", content, {"rowTag": "s:row"})
    assert (found.rows, found.header) == (30_000, ("_s:id", "name"))
    assert guess_row_tag(iter([content[: 1 << 20], content[1 << 20 :]])) == "s:row"
    assert guess_row_tag(iter([b"<order><id>1</id></order>"])) == "id"
    assert look_through(tmp_path / "none", "readings.xml", b"<rows/>").rows == 0


def test_large_rows_and_files_of_xml_and_avro_are_refused(tmp_path: Path) -> None:
    row = b"<rows><row><name>" + b"x" * (2 << 20) + b"</name></row></rows>"
    with pytest.raises(DeliveryError, match=r"row 1 is longer than 1 MiB.*LAKESHARE_MAX_LINE_MB"):
        look_through(tmp_path / "a", "readings.xml", row, max_line_mb=1)
    packed = CODECS[".gz"].pack(b"<rows>" + b" " * (3 << 20) + b"</rows>")
    with pytest.raises(DeliveryError, match=r"unpacks to more than 2 MiB.*LAKESHARE_MAX_UNPACKED_MB"):
        look_through(tmp_path / "b", "readings.xml.gz", packed, max_unpacked_mb=2)
    rows = avro_bytes([{"name": "x" * 1000}] * 3000, {"name": "string"})
    assert look_through(tmp_path / "c", "readings.avro", rows).rows == 3000
    with pytest.raises(DeliveryError, match=r"unpacks to more than 2 MiB"):
        look_through(tmp_path / "d", "readings.avro", rows, max_unpacked_mb=2)


@pytest.mark.parametrize("codec", ["deflate", "bzip2", "xz", "snappy", "zstandard"])
def test_a_block_of_avro_is_not_decompressed_beyond_a_limit(
    monkeypatch: pytest.MonkeyPatch, codec: str
) -> None:
    is_own = codec in ("deflate", "bzip2", "xz")
    content = avro_bytes([{"name": "x" * (2 << 20)}], {"name": "string"}, codec if is_own else "null")
    content = content if is_own else compress_avro(content, codec)
    assert check_container(io.BytesIO(content)).rows == len(read_container(content).blocks) == 1
    monkeypatch.setattr(avro, "MAX_BLOCK_BYTES", 1 << 20)
    for read in (lambda: check_container(io.BytesIO(content)), lambda: read_container(content)):
        with pytest.raises(AvroError, match="a block is larger than 1 MiB, decompressed"):
            read()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'[{"id": 1},\n {"id": 2}', "is no JSON document: Expecting ',' delimiter in line 2, column 11"),
        (
            b'{"id": 1}\n{"id": 2}\n',
            r"Extra data in line 2, column 1\. Correct it\. Deliver one object a line",
        ),
        (b'[{"id": "\xe9"}]', "is not UTF-8: byte 0xe9 in line 1"),
        (b'"text"', "is neither a JSON object nor an array of objects"),
        (b"[" * 100_000, "it is nested too deep"),
        (
            b'[{"name": "' + b"x" * (2 << 20) + b'"}]',
            "is a JSON document of more than 1 MiB.*LAKESHARE_MAX_LINE_MB",
        ),
    ],
)
def test_json_documents_that_are_not_read_are_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    with pytest.raises(DeliveryError, match=reason):
        look_through(tmp_path, "readings.json", content, {"multiline": True}, max_line_mb=1)


def test_avro_containers_with_any_codec_and_a_long_header_are_read_in_pieces() -> None:
    rows = [{"id": number, "name": os.urandom(5000).hex()} for number in range(200)]
    types = {"id": "int", "name": "string"}
    for codec in ("null", "deflate", "bzip2", "xz"):
        found = check_container(io.BytesIO(avro_bytes(rows, types, codec)))
        assert found.rows == 200
        assert found.unpacked_bytes > PIECE_BYTES
    described = {"type": "enum", "name": "e", "symbols": ["a"], "doc": "x" * 2 * PIECE_BYTES}
    content = avro_bytes([{"id": "a"}], {"id": described})
    assert len(content) > 2 * PIECE_BYTES
    assert check_container(io.BytesIO(content)).rows == 1


def test_another_row_tag_is_breaking_and_a_first_one_is_not(tmp_path: Path) -> None:
    def classes(old: dict[str, object] | None, new: dict[str, object]) -> list[str]:
        contracts = [
            a_readings_contract(tmp_path, columns=TWO_COLUMNS, reading=reading) for reading in (old, new)
        ]
        return [change.level for change in compare_contracts(*contracts)]

    assert classes(None, ROWS) == []
    assert classes(ROWS, {"rowTag": "order"}) == ["breaking"]
