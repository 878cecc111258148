"""Answers of LIST become the same rows whatever spelling and order of fields a store has."""

import datetime as dt

import pytest

from lakeshare_pipelines.backup.inventory.list_objects import read_page
from lakeshare_pipelines.backup.model import LISTING

TIME = "2026-11-20T09:30:15.123Z"
AT = dt.datetime(2026, 11, 20, 9, 30, 15, 123000, tzinfo=dt.UTC)


def an_object(key: str, *, etag: str = "&quot;abc-2&quot;", more: str = "") -> str:
    told = f"<Key>{key}</Key><LastModified>{TIME}</LastModified><ETag>{etag}</ETag><Size>3</Size>{more}"
    return f"<Contents>{told}</Contents>"


def objects(*entries: str, head: str = "<EncodingType>url</EncodingType>") -> bytes:
    return f'<?xml version="1.0"?>\n<ListBucketResult>{head}{"".join(entries)}</ListBucketResult>\n'.encode()


@pytest.mark.parametrize(
    ("spelt", "key"),
    [
        ("plain/key.parquet", "plain/key.parquet"),
        ("day%3D2026-01-01/a.parquet", "day=2026-01-01/a.parquet"),
        ("a+b%2Bc%2520", "a b+c%20"),
        ("%253D%3D", "%3D="),
        ("line%0Abreak", "line\nbreak"),
        ("%C3%A9/%F0%9F%8C%8A", "é/🌊"),
        ("q%26%3C%3E%22%27", "q&<>\"'"),
    ],
)
def test_encoded_keys_are_decoded(spelt: str, key: str) -> None:
    assert read_page(objects(an_object(spelt), an_object("other"))).keys == [key, "other"]


def test_keys_without_encoding_are_unescaped_only() -> None:
    page = read_page(objects(an_object("a+b%20&amp;&lt;"), an_object("c"), head=""))
    assert page.keys == ["a+b%20&<", "c"]


@pytest.mark.parametrize("etag", ["&quot;abc-2&quot;", "&#34;abc-2&#34;", '"abc-2"', "abc-2"])
def test_etags_have_no_quotes_however_they_are_written(etag: str) -> None:
    row = read_page(objects(an_object("k", etag=etag))).rows("lake").to_pylist()[0]
    assert (row["etag"], row["is_multipart"], row["storage_class"]) == ("abc-2", True, "STANDARD")
    assert (row["bucket"], row["size_bytes"], row["last_modified"]) == ("lake", 3, AT)


def test_fields_that_only_some_objects_have_stay_with_theirs() -> None:
    archived = "<StorageClass>GLACIER</StorageClass><ChecksumAlgorithm>CRC64NVME</ChecksumAlgorithm>"
    page = read_page(objects(an_object("a"), an_object("b", more=archived), an_object("c")))
    rows = page.rows("lake").to_pylist()
    assert [row["storage_class"] for row in rows] == ["STANDARD", "GLACIER", "STANDARD"]
    assert [row["checksum_algorithm"] for row in rows] == [None, "CRC64NVME", None]


def test_versions_and_delete_markers_keep_their_order() -> None:
    body = (
        "<ListVersionsResult><IsTruncated>true</IsTruncated><NextKeyMarker>a&amp;b</NextKeyMarker>"
        "<NextVersionIdMarker>v0</NextVersionIdMarker>"
        f"<DeleteMarker><Key>a&amp;b</Key><VersionId>v2</VersionId><IsLatest>true</IsLatest>"
        f"<LastModified>{TIME}</LastModified></DeleteMarker>"
        f"<Version><Key>a&amp;b</Key><VersionId>null</VersionId><IsLatest>false</IsLatest><ETag>e</ETag><Size>7</Size>"
        f"<LastModified>{TIME}</LastModified></Version></ListVersionsResult>"
    )
    page = read_page(body.encode())
    marker, old = page.rows("lake").to_pylist()
    assert (marker["key"], marker["version_id"], marker["is_latest"]) == ("a&b", "v2", True)
    assert marker["is_delete_marker"]
    assert marker["size_bytes"] is None
    assert marker["etag"] is None
    assert marker["storage_class"] is None
    assert marker["is_multipart"] is None
    assert (old["version_id"], old["is_latest"], old["size_bytes"]) == (None, False, 7)
    assert dict(page.next) == {"key-marker": "a&b", "version-id-marker": "v0"}


def test_an_empty_listing_has_no_rows() -> None:
    rows = read_page(objects()).rows("lake")
    assert rows.num_rows == 0
    assert rows.schema == LISTING


def test_prefixes_and_the_way_on_are_told() -> None:
    head = (
        "<EncodingType>url</EncodingType><IsTruncated>true</IsTruncated><NextContinuationToken>t+/=</NextContinuationToken>"
        "<CommonPrefixes><Prefix>a+b/</Prefix></CommonPrefixes>"
    )
    page = read_page(objects(head=head))
    assert (page.prefixes, dict(page.next)) == (["a b/"], {"continuation-token": "t+/="})


@pytest.mark.parametrize(
    "body",
    [
        b"<html>no bucket here</html>",
        objects(an_object("k"))[:-30],
        objects(an_object("k"), head="<IsTruncated>true</IsTruncated>"),
        objects("<Contents><ETag>e</ETag><Size>3</Size></Contents>"),
        b"<ListBucketResult><Contents><Key>\xff</Key></Contents></ListBucketResult>",
    ],
    ids=["no listing", "cut off", "no way on", "no key", "no UTF-8"],
)
def test_what_is_no_whole_listing_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_page(body)
