"""The request of a copy says all that it depends on: version, condition and owner."""

import datetime as dt
from pathlib import Path

import pytest

from lakeshare_pipelines.backup.async_s3 import Response
from lakeshare_pipelines.backup.copy.engine import CopyItem, CopyTask, NotCopied
from lakeshare_pipelines.backup.copy.objects import (
    SourceObject,
    choose_part_bounds,
    make_copied_outcome,
    make_source_headers,
    split_ranges,
)
from lakeshare_pipelines.backup.stores import StoreAddress

AS_OF = dt.datetime(2026, 11, 21, tzinfo=dt.UTC)
LAKE = StoreAddress(url="s3://lake/sales/", account="123456789012")
MIB = 1024**2


def a_task() -> CopyTask:
    vault, folder = StoreAddress(url="s3://vault"), Path("unused")
    return CopyTask(LAKE, vault, folder, folder, "work/", AS_OF, 5 * 1024 * MIB, 1)


def wanted(
    key: str = "a b", version: str | None = None, etag: str | None = "e", bucket: str = "lake"
) -> CopyItem:
    return CopyItem(bucket, key, version, f"objects/{key}", 4, etag)


@pytest.mark.parametrize(
    ("one", "headers"),
    [
        (
            wanted(),
            {
                "x-amz-copy-source": "/lake/a%20b",
                "x-amz-copy-source-if-match": '"e"',
                "x-amz-source-expected-bucket-owner": "123456789012",
            },
        ),
        (
            wanted("a?versionId=x", version="a+b=", bucket="other"),
            {
                "x-amz-copy-source": "/other/a%3FversionId%3Dx?versionId=a%2Bb%3D",
                "x-amz-copy-source-if-match": '"e"',
            },
        ),
        (
            wanted(etag=None, bucket="other"),
            {
                "x-amz-copy-source": "/other/a%20b",
                "x-amz-copy-source-if-unmodified-since": "Sat, 21 Nov 2026 00:00:00 GMT",
            },
        ),
    ],
    ids=["listed", "a version of another bucket", "without an ETag"],
)
def test_the_source_is_named_with_its_conditions(one: CopyItem, headers: dict[str, str]) -> None:
    assert make_source_headers(one, a_task()) == headers


@pytest.mark.parametrize(
    ("body", "checksum"),
    [
        (b"<ETag>&quot;e&quot;</ETag><ChecksumCRC64NVME>AAAA=</ChecksumCRC64NVME>", "crc64nvme:AAAA="),
        (b"<ETag>&quot;e&quot;</ETag><ChecksumSHA256>AAAA=-3</ChecksumSHA256>", None),
        (b'<ETag>"e"</ETag>', None),
    ],
)
def test_a_checksum_of_the_whole_is_kept_and_one_of_parts_is_not(body: bytes, checksum: str | None) -> None:
    outcome = make_copied_outcome(wanted(), Response(200, {"x-amz-version-id": "v1"}, body))
    assert (outcome.stored_etag, outcome.stored_version_id, outcome.checksum) == ("e", "v1", checksum)


def test_a_copy_without_an_etag_is_none() -> None:
    with pytest.raises(NotCopied, match="gave no ETag"):
        make_copied_outcome(wanted(), Response(200, {}, b"<CopyObjectResult></CopyObjectResult>"))


@pytest.mark.parametrize(
    ("size_bytes", "own", "most_bytes", "parts"),
    [
        (12 * MIB, 5 * MIB, 5 * MIB, [5 * MIB, 5 * MIB, 2 * MIB]),
        (12 * MIB, 6 * MIB, 5 * MIB, [5 * MIB, 5 * MIB, 2 * MIB]),
        (12 * MIB, None, 5 * 1024 * MIB, [12 * MIB]),
        (100 * MIB, None, 5 * 1024 * MIB, [64 * MIB, 36 * MIB]),
    ],
    ids=["the source's own", "own ones that are too large", "small", "of a size that suits"],
)
def test_parts_are_the_source_s_own_where_they_can_be(
    size_bytes: int, own: int | None, most_bytes: int, parts: list[int]
) -> None:
    opened = SourceObject(size_bytes, 0, bounds=split_ranges(size_bytes, own) if own else None)
    assert [end - start for start, end in choose_part_bounds(opened, most_bytes)] == parts


def test_no_object_has_more_parts_than_a_store_takes() -> None:
    bounds = choose_part_bounds(SourceObject(50 * 1024**4, 0), 5 * 1024**3)
    assert len(bounds) <= 10_000
    assert bounds[-1][1] == 50 * 1024**4
