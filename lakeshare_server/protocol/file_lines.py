"""The line of each file of a snapshot, put together from what the index rendered, the URLs and what was asked."""

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_server.protocol.negotiation import ResponseFormat
from lakeshare_server.protocol.signing import Sign
from lakeshare_server.tables.byte_strings import byte_strings

# What comes between the id and the URL, and what closes the line.
BEFORE_URL = {"parquet": b'","url":"', "delta": b'","deltaSingleAction":{"add":{"path":"'}
AFTER_URL = b'",'
END = {"parquet": b"}}\n", "delta": b"}}}}\n"}
VECTOR_URL = b',"deletionVector":{"storageType":"p","pathOrInlineDv":"'
VECTOR_ID = b'}},"deletionVectorFileId":"'
VECTOR_END = b'"}}\n'


@dataclass(frozen=True, kw_only=True)
class SnapshotLines:
    """The words of one answer; `ids` is the scheme of the files' ids (protocol §2.6)."""

    response_format: ResponseFormat
    ids: ResponseFormat
    expires_at_ms: int
    # Told to those who asked for a version or a time (protocol §2.1).
    version: int | None = None

    def of(self, files: pa.RecordBatch, sign: Sign) -> bytes:
        """The lines of a batch of an index."""
        asked = "" if self.version is None else f'"version":{self.version},'
        head = f'{{"file":{{"expirationTimestamp":{self.expires_at_ms},{asked}"id":"'.encode()
        before, end = BEFORE_URL[self.response_format], END[self.response_format]
        ids = byte_strings(files.column(f"{self.ids}_id"))
        urls = sign(files.column("path"))
        common = byte_strings(files.column("common"))
        if self.response_format == "parquet":
            return b"".join(
                [
                    piece
                    for one, url, said in zip(ids, urls, common, strict=True)
                    for piece in (head, one, before, url, AFTER_URL, said, end)
                ]
            )
        rest = byte_strings(files.column("delta_rest"))
        ends = vector_ends(files, sign) or [end] * len(rest)
        return b"".join(
            [
                piece
                for one, url, said, more, last in zip(ids, urls, common, rest, ends, strict=True)
                for piece in (head, one, before, url, AFTER_URL, said, more, last)
            ]
        )


def vector_ends(files: pa.RecordBatch, sign: Sign) -> list[bytes] | None:
    """How each line ends, when some have a deletion vector in a file of its own."""
    paths = files.column("dv_path")
    if paths.null_count == len(paths):
        return None
    has_vector = pc.is_valid(paths)
    vectors = files.filter(has_vector)
    urls = iter(sign(vectors.column("dv_path")))
    said = iter(
        zip(byte_strings(vectors.column("dv_rest")), byte_strings(vectors.column("dv_file_id")), strict=True)
    )
    plain = END["delta"]
    return [
        b"".join((VECTOR_URL, next(urls), *_around_id(*next(said)))) if one else plain
        for one in has_vector.to_pylist()
    ]


def _around_id(rest: bytes, file_id: bytes) -> tuple[bytes, ...]:
    return rest, VECTOR_ID, file_id, VECTOR_END
