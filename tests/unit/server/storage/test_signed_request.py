"""A request is signed when it reads one key of the table's bucket, and its address can be taken in one way only."""

import pytest

from lakeshare_server.errors import Denied
from lakeshare_server.storage.s3 import read_key
from lakeshare_server.storage.sigv4 import Bucket

LAKE = Bucket("lake", "us-east-1", "https://s3.host", path_style=True)


def test_keys_are_read_from_both_ways_to_address_a_bucket() -> None:
    for by_path, uri in ((True, "https://s3.host/lake/t/a%20b"), (False, "https://lake.s3.host/t/a%20b")):
        bucket = Bucket("lake", "us-east-1", "https://s3.host", by_path)
        assert read_key(bucket, "GET", uri) == "t/a b"
    assert read_key(LAKE, "HEAD", "https://s3.host/lake/t/a%253F?x-id=HeadObject") == "t/a%3F"


@pytest.mark.parametrize(
    ("method", "uri"),
    [
        ("PUT", "https://s3.host/lake/t/a"),
        ("get", "https://s3.host/lake/t/a"),
        ("GET", "https://s3.host/lake"),
        ("GET", "https://s3.host/lake2/t/a"),
        ("GET", "https://s3.host.example/lake/t/a"),
        ("GET", "https://me@s3.host/lake/t/a"),
        ("GET", "http://s3.host/lake/t/a"),
        ("GET", "https://s3.host/lake/t/a?acl"),
        ("GET", "https://s3.host/lake/t/a?versionId=1"),
        ("GET", "https://s3.host/lake/t/%ff"),
        ("GET", "http://["),
        ("GET", ""),
    ],
)
def test_anything_else_is_refused(method: str, uri: str) -> None:
    with pytest.raises(Denied):
        read_key(LAKE, method, uri)
