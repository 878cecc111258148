"""A file that cannot be read at all, or changes while it is read, is named with reason and remedy."""

import bz2
import datetime as dt
import gzip
import io
import zlib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc

from lakeshare_pipelines.errors import DeliveryError, SampleError
from lakeshare_pipelines.ingest.draft import draft_contract
from lakeshare_pipelines.ingest.frame import read_delivery
from lakeshare_pipelines.ingest.profile import read_files
from lakeshare_pipelines.ingest.readable import ReadingLimits
from lakeshare_pipelines.spark.session import translate_errors
from lakeshare_pipelines.wap.staged import Lake
from tests.builders.landing import (
    AVRO_NUMBERS,
    AVRO_OR_NULL,
    GEOMETRY,
    a_readings_contract,
    avro_bytes,
    landed,
    orc_bytes,
    parquet_bytes,
    zipped,
)

TWO_COLUMNS = [{"name": "id", "physicalType": "int"}, {"name": "name", "logicalType": "string"}]
GOOD = "id,name\n1,a\n"
AVRO = [{"id": number, "big": number} for number in range(100)]
XML = "<rows>\n<row><id>1</id><name>a</name></row></rows>"
PARQUET = parquet_bytes({"id": list(range(500))})
# As a varint of Thrift in the footer; the last one is that of the only row group.
ROWS_500, ROWS_499 = b"\x16\xe8\x07", b"\x16\xe6\x07"
LONG = zipped("id,name\n" + "".join(f"{number},name {number * 7919}\n" for number in range(5000)))

UNREADABLE: dict[str, tuple[str, bytes, str, str]] = {
    "empty": ("readings-2.csv", b"", "is empty (0 bytes)", "Deliver the file again"),
    "blank": ("readings-2.csv", b"\n\n", "holds nothing", "Deliver the file again"),
    "blank JSON lines": ("readings-2.jsonl", b"\n", "holds nothing", "JSON lines a line break"),
    "empty Parquet": ("readings-2.parquet", b"", "is empty (0 bytes)", "Deliver the file again"),
    "cut Parquet": (
        "readings-2.parquet", parquet_bytes({"id": [1], "name": ["a"]})[:-20], "is no sound Parquet file", "Transfer"),
    "Parquet with other rows": (
        "readings-2.parquet", ROWS_499.join(PARQUET.rsplit(ROWS_500, 1)), "row groups have other numbers", "Transfer"),
    "no Parquet": ("readings-2.parquet", GOOD.encode(), "is no sound Parquet file", "Transfer the file again"),
    "cut ORC": ("readings-2.orc", orc_bytes({"id": [1], "name": ["a"]})[:-20], "is no sound ORC file", "Transfer"),
    "no ORC": ("readings-2.orc", GOOD.encode(), "is no sound ORC file", "Transfer the file again"),
    "ORC with a zone": (
        "readings-2.orc", orc_bytes({"id": [1], "name": [dt.datetime(2024, 1, 1, tzinfo=dt.UTC)]}),
        "time zone", "in UTC"),
    "cut gzip": ("readings-2.csv.gz", LONG[: len(LONG) // 2], "is cut off", "Transfer the file again"),
    "spoilt gzip": ("readings-2.csv.gz", LONG[:400] + b"\x00" * 50 + LONG[450:], "is no sound gzip file", "Transfer"),
    "no gzip": ("readings-2.csv.gz", GOOD.encode(), "is no sound gzip file", "Transfer the file again"),
    "empty gzip": ("readings-2.csv.gz", gzip.compress(b""), "holds nothing", "Deliver the file again"),
    "latin-1": ("readings-2.csv", "id,name\n1,a\n2,café\n".encode("latin-1"), "byte 0xe9 in line 3", "iconv"),
    "latin-1 JSON": ("readings-2.jsonl", '{"name": "é"}\n'.encode("latin-1"), "byte 0xe9 in line 1", "iconv"),
    "UTF-16": ("readings-2.csv", GOOD.encode("utf-16"), "is not UTF-8", "iconv -f UTF-16"),
    "UTF-16 without a mark": ("readings-2.csv", GOOD.encode("utf-16-le"), "zero byte in line 1", "iconv -f UTF-16"),
    "a zero byte": ("readings-2.csv", GOOD.encode() + b"3,\0\n", "has a zero byte in line 3", "tr -d '\\0'"),
    "gzip without its ending": ("readings-2.csv", gzip.compress(GOOD.encode()), "is not UTF-8", "ends with .gz"),
    "ZIP": ("readings-2.csv", b"PK\3\4\x14\0" + GOOD.encode(), "has a zero byte", "is a ZIP archive"),
    "no text": ("readings-2.csv", b"\xd0\xcf\x11\xe0\xa1\0", "byte 0xd0 in line 1", "text without zero bytes"),
    "no header": ("readings-2.csv", b"\n\n" + GOOD.encode(), "no names in its first line", "Begin it with"),
    "cut Avro": ("readings-2.avro", avro_bytes(AVRO)[:-20], "is no sound Avro file: it is cut off", "Transfer"),
    "no Avro": ("readings-2.avro", GOOD.encode(), "is no sound Avro file: it does not begin like", "Transfer"),
    "damaged Avro": (
        "readings-2.avro", avro_bytes(AVRO)[:-40] + bytes(40), "is no sound Avro file: a block", "Transfer the file"),
    "Avro of a type within itself": (
        "readings-2.avro", avro_bytes([{"id": {"id": None}}], {"id": "row"}), "the type 'row' within itself", "types"),
    "Avro without records": ("readings-2.avro", AVRO_NUMBERS, "has values that are no records", "Deliver records"),
    "Avro of a union": ("readings-2.avro", AVRO_OR_NULL, "has values that are no records", "Deliver records"),
    "cut bzip2": ("readings-2.csv.bz2", bz2.compress(GOOD.encode())[:-5], "bzip2 data ends too early", "Transfer"),
    "no zstandard": ("readings-2.csv.zst", GOOD.encode(), "is no sound zstandard file", "Transfer the file again"),
    "cut deflate": ("readings-2.csv.deflate", zlib.compress(GOOD.encode())[:-5], "ends too early", "Transfer"),
    "no XML": ("readings-2.xml", GOOD.encode(), "is no sound XML: syntax error in line 1, column 1", "Correct"),
    "cut XML": ("readings-2.xml", XML.encode()[:-8], "is no sound XML: unclosed token in line 2", "Correct the file"),
    "broken XML": ("readings-2.xml", XML.replace("</name>", "").encode(), "mismatched tag in line 2", "Correct"),
    "XML of other rows": ("readings-2.xml", XML.replace("row>", "r>").encode(), "no element <row>; its", "rowTag"),
    "XML with rows in rows": (
        "readings-2.xml", XML.replace("name>", "row>").encode(), "row 1 has another <row> within", "beside each other"),
    "XML in Latin-1": (
        "readings-2.xml", b'<?xml version="1.0" encoding="ISO-8859-1"?><rows/>', "declared as ISO-8859-1", "UTF-8"),
    "XML with entities that grow": (
        "readings-2.xml", f'<!DOCTYPE rows [<!ENTITY a "{"x" * 99}"><!ENTITY b "&a;&a;">]>{XML}'.encode(),
        "has a document type", "entities replaced"),
    "XML with an external entity": (
        "readings-2.xml", b'<!DOCTYPE r [<!ENTITY f SYSTEM "file:///etc/hostname">]><rows><row>&f;</row></rows>',
        "has a document type", "entities replaced"),
    "Avro of no schema": (
        "readings-2.avro", avro_bytes(AVRO).replace(b'"fields"', b'"fieldz"'), "its schema is not one of", "Transfer"),
    "more than deflate": (
        "readings-2.csv.deflate", zlib.compress(GOOD.encode()) + b"x", "data after the end of the stream", "Transfer"),
    "Parquet with a time": (
        "readings-2.parquet", parquet_bytes({"id": [dt.time(1)]}), "that Spark cannot read: id (TIME)", "texts"),
    "Parquet with floats of 16 bits": (
        "readings-2.parquet", parquet_bytes({"id": [1.5]}, id=pa.float16()), "id (FLOAT16)", "texts"),
    "Parquet with a geometry": (
        "readings-2.parquet", GEOMETRY, "that Spark cannot read: id (GEOMETRY)", "geometries also as binary"),
    "header of a long name": ("readings-2.csv", b"x" * 200_000, "cannot be read: field larger", "Check the file"),
    "cut character": ("readings-2.csv", "id,name\n1,é".encode()[:-1], "cut off at the end", "iconv"),
}  # fmt: skip
REFUSED_BY_SPARK: dict[str, tuple[str, bytes, str, str]] = {
    "Parquet of names that differ by case": (
        "readings-2.parquet", parquet_bytes({"id": [1], "ID": [1]}), "column `id` already exists", "more than case"),
    "ORC of names that differ by case": (
        "readings-2.orc", orc_bytes({"id": [1], "ID": [1]}), "column `id` already exists", "more than case"),
    "Avro of names that differ by case": (
        "readings-2.avro", avro_bytes([{"id": 1, "ID": 1}], {"id": "int", "ID": "int"}), "already exists", "than case"),
}  # fmt: skip


@pytest.mark.parametrize("name", [*UNREADABLE, *REFUSED_BY_SPARK])
def test_an_unreadable_file_is_named_with_reason_and_remedy(lake: Lake, tmp_path: Path, name: str) -> None:
    file, content, reason, fix = (UNREADABLE | REFUSED_BY_SPARK)[name]
    contract = a_readings_contract(tmp_path, columns=TWO_COLUMNS, reading={"rowTag": "row"})
    delivery = landed(tmp_path, contract, {"readings-1.csv": GOOD, file: content})
    with pytest.raises(DeliveryError) as caught:
        read_delivery(lake.spark, contract, [delivery])
    assert caught.value.subject == f"{contract.name}/all/{file}"
    assert reason in caught.value.reason
    assert fix in caught.value.fix


@pytest.mark.parametrize(
    "rest", [pytest.param('2,"' + "x,y\n" * (1 << 19), id="quote"), pytest.param("," * 30_000, id="fields")]
)
def test_a_quote_that_is_never_closed_is_refused_before_the_value_fills_the_memory(
    lake: Lake, tmp_path: Path, rest: str
) -> None:
    """So is a row of very many fields, which Spark's parser refuses with an error of its own."""
    contract = a_readings_contract(tmp_path, columns=TWO_COLUMNS, reading={"multiline": True})
    delivery = landed(tmp_path, contract, {"readings.csv": GOOD + rest})
    settings = lake.settings.model_copy(update={"max_line_mb": 1})
    message = r"all/readings\.csv: a value is longer than 1 MiB or a row than 20,480 fields.*MAX_LINE_MB"
    with (
        pytest.raises(DeliveryError, match=message),
        translate_errors(settings, "staging", {file.location: file.size_bytes for file in delivery.files}),
    ):
        read_delivery(lake.spark, contract, [delivery], ReadingLimits(max_line_mb=1))


def a_damaged_parquet() -> bytes:
    """One bit of an uncompressed value is another; the page has a checksum."""
    written = io.BytesIO()
    rows = pa.table({"id": pa.array(range(1000), pa.int32()), "name": ["a"] * 1000})
    pq.write_table(rows, written, compression="none", use_dictionary=False, write_page_checksum=True)
    content = bytearray(written.getvalue())
    content[content.index((500).to_bytes(4, "little") + (501).to_bytes(4, "little"))] ^= 1
    return bytes(content)


def a_damaged_orc() -> bytes:
    """ORC has no checksums, but a damaged block cannot be decompressed."""
    written = io.BytesIO()
    orc.write_table(
        pa.table({"id": range(1000), "name": [f"{each * 7919}" for each in range(1000)]}),
        written,
        compression="zlib",
    )
    content = written.getvalue()
    return content[:600] + bytes(64) + content[664:]


@pytest.mark.parametrize(
    ("file", "content", "cause"),
    [
        ("readings-2 a.parquet", a_damaged_parquet(), "CRC checksum verification failed"),
        ("readings-2.orc", a_damaged_orc(), "DataFormatException"),
    ],
    ids=["Parquet", "ORC"],
)
def test_a_file_with_damaged_values_and_a_sound_footer_is_refused(
    lake: Lake, tmp_path: Path, file: str, content: bytes, cause: str
) -> None:
    contract = a_readings_contract(tmp_path, columns=TWO_COLUMNS)
    delivery = landed(tmp_path, contract, {file: content})
    (tmp_path / file).write_bytes(content)
    sizes = {each.location: each.size_bytes for each in delivery.files}
    reason = rf"{file}: Spark cannot read its values: .*{cause}.*Transfer it again, or write it with another"
    with (
        pytest.raises(DeliveryError, match=f"all/{reason}"),
        translate_errors(lake.settings, "staging", sizes),
    ):
        read_delivery(lake.spark, contract, [delivery])["sensors.readings"].read()
    with pytest.raises(SampleError, match=reason):
        draft_contract(read_files(lake.spark, [str(tmp_path / file)]))


def test_after_the_file_is_replaced_the_same_delivery_reads(lake: Lake, tmp_path: Path) -> None:
    contract = a_readings_contract(tmp_path, columns=TWO_COLUMNS)
    with pytest.raises(DeliveryError):
        read_delivery(lake.spark, contract, [landed(tmp_path, contract, {"readings.csv.gz": LONG[:-100]})])
    delivered = read_delivery(lake.spark, contract, [landed(tmp_path, contract, {"readings.csv.gz": LONG})])
    assert delivered["sensors.readings"].read().rows == 5000


def test_a_file_that_goes_away_while_it_is_read_is_blamed_on_the_delivery(lake: Lake, tmp_path: Path) -> None:
    contract = a_readings_contract(tmp_path, columns=TWO_COLUMNS)
    delivery = landed(tmp_path, contract, {"readings.csv": GOOD, "readings-2.csv": GOOD})
    Path(delivery.files[1].location).unlink()
    with pytest.raises(DeliveryError, match=r"is not a file|changed while it was read"):
        read_delivery(lake.spark, contract, [delivery])
