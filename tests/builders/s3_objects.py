"""Objects that an S3 store answers with: whole or by range, and in listings of a prefix."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from tests.builders.answering_store import AnsweringStore, answering_store, said, said_of_object


@contextmanager
def s3_with(objects: Mapping[str, bytes]) -> Iterator[AnsweringStore]:
    """A store of objects by `bucket/key`, addressed by path."""

    def answer(request: str) -> bytes:
        method, target = request.split(" ", 2)[:2]
        parts = urlsplit(target)
        asked = parse_qs(parts.query)
        name = unquote(parts.path).lstrip("/")
        if "list-type" in asked:
            return _listing(objects, name.strip("/"), asked)
        if name not in objects:
            return said("404 Not Found", "" if method == "HEAD" else "<Error><Code>NoSuchKey</Code></Error>")
        return said_of_object(b"" if method == "HEAD" else objects[name], request)

    with answering_store(answer) as store:
        yield store


def _listing(objects: Mapping[str, bytes], bucket: str, asked: Mapping[str, list[str]]) -> bytes:
    prefix, after = asked.get("prefix", [""])[0], asked.get("start-after", [""])[0]
    keys = [re.sub(rf"^{re.escape(bucket)}/", "", name) for name in objects if name.startswith(f"{bucket}/")]
    found = sorted(key for key in keys if key.startswith(prefix) and key > after)
    contents = "".join(
        f"<Contents><Key>{escape(key)}</Key><Size>{len(objects[f'{bucket}/{key}'])}</Size>"
        "<LastModified>2030-01-01T00:00:00.000Z</LastModified><ETag>one</ETag></Contents>"
        for key in found
    )
    head = f"<Name>{bucket}</Name><IsTruncated>false</IsTruncated><KeyCount>{len(found)}</KeyCount>"
    return said(
        "200 OK", f"<ListBucketResult>{head}{contents}</ListBucketResult>", "Content-Type: application/xml"
    )
