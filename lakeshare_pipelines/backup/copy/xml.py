"""The little XML that copies read and write."""

import re
from xml.sax.saxutils import escape


def blocks(body: bytes, tag: str) -> list[bytes]:
    """The content of each element of a name."""
    return re.findall(rf"<{tag}>(.*?)</{tag}>".encode(), body, re.DOTALL)


def completed_upload(etags: list[str]) -> bytes:
    """The body that completes an upload of these parts (S3 API, CompleteMultipartUpload)."""
    parts = "".join(
        f'<Part><PartNumber>{number}</PartNumber><ETag>"{escape(etag)}"</ETag></Part>'
        for number, etag in enumerate(etags, start=1)
    )
    space = "http://s3.amazonaws.com/doc/2006-03-01/"
    return f'<CompleteMultipartUpload xmlns="{space}">{parts}</CompleteMultipartUpload>'.encode()
