"""The line of each file of a snapshot, put together from what the index rendered, the URLs and what was asked.

Whole columns are joined at a time, outside of Python: a line is bytes only once it is on its way.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_server.protocol.negotiation import ResponseFormat
from lakeshare_server.protocol.signing import Sign
from lakeshare_server.tables.byte_strings import texts

# What comes between the id and the URL, and what closes the line.
BEFORE_URL = {"parquet": '","url":"', "delta": '","deltaSingleAction":{"add":{"path":"'}
AFTER_URL = '",'
END = {"parquet": "}}\n", "delta": "}}}}\n"}
VECTOR_URL = ',"deletionVector":{"storageType":"p","pathOrInlineDv":"'
VECTOR_ID = '}},"deletionVectorFileId":"'
VECTOR_END = '"}}\n'


@dataclass(frozen=True, kw_only=True)
class SnapshotLines:
    """The words of one answer; `ids` is the scheme of the files' ids (protocol §2.6)."""

    response_format: ResponseFormat
    ids: ResponseFormat
    expires_at_ms: int
    # Told to those who asked for a version or a time (protocol §2.1).
    version: int | None = None

    @property
    def columns(self) -> Sequence[str]:
        """The columns of an index that its lines are made of."""
        ends = ["delta_rest", "dv_path", "dv_rest", "dv_file_id"] if self.response_format == "delta" else []
        return [f"{self.ids}_id", "path", "common", *ends]

    def of(self, files: pa.RecordBatch, sign: Sign) -> memoryview:
        """The lines of a batch of an index."""
        asked = "" if self.version is None else f'"version":{self.version},'
        parts: list[str | pa.Array] = [
            f'{{"file":{{"expirationTimestamp":{self.expires_at_ms},{asked}"id":"',
            files.column(f"{self.ids}_id"),
            BEFORE_URL[self.response_format],
            signed(files.column("path"), sign),
            AFTER_URL,
            files.column("common"),
        ]
        if self.response_format == "delta":
            parts += [files.column("delta_rest"), vector_ends(files, sign)]
        else:
            parts.append(END["parquet"])
        return text_of(parts)


def signed(paths: pa.StringArray, sign: Sign) -> pa.StringArray:
    """The URLs of locations, as a column."""
    return texts(sign(paths))


def vector_ends(files: pa.RecordBatch, sign: Sign) -> str | pa.Array:
    """How each line ends: the same for all, unless some have a deletion vector in a file of its own."""
    paths = files.column("dv_path")
    plain = END["delta"]
    if paths.null_count == len(paths):
        return plain
    has_vector = pc.is_valid(paths)
    vectors = files.filter(has_vector)
    ends = pc.binary_join_element_wise(
        VECTOR_URL,
        signed(vectors.column("dv_path"), sign),
        vectors.column("dv_rest"),
        VECTOR_ID,
        vectors.column("dv_file_id"),
        VECTOR_END,
        "",
    )
    return pc.replace_with_mask(pa.repeat(plain, len(paths)), has_vector, ends)


def text_of(parts: Sequence[str | pa.Array]) -> memoryview:
    """The rows of joined columns, one after the other."""
    rows = pc.binary_join_element_wise(*parts, "")
    _, offsets, characters = rows.buffers()
    ends = memoryview(offsets).cast("i")
    return memoryview(characters)[ends[rows.offset] : ends[rows.offset + len(rows)]]
