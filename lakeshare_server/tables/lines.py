"""The lines of a file in both response formats, rendered at publication but for its URLs and what a request adds.

A line is put together from columns: ids, `common` (what both formats say in the same words), `delta_rest` (what only
the delta format says), and for deletion vectors in files of their own `dv_rest`, which a second URL completes.
"""

import hashlib
import json
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_server.storage.locations import byte_strings, is_plain, texts_of_width

DAYS = (-719_162, 2_932_896)
MILLISECOND_CHARACTERS = len("2013-01-01T00:00:00.000")
MICROSECONDS = (-62_135_596_800_000_000, 253_402_300_799_999_999)

Part: TypeAlias = str | pa.Array


@dataclass(frozen=True)
class JsonText:
    """How text is quoted: plainly, or for JSON that itself goes into a JSON string."""

    quote: str
    depth: int

    def string(self, values: pa.Array) -> list[Part]:
        """Each string as a JSON string."""
        if not is_plain(values, without=b'"'):
            different = pc.drop_null(pc.unique(values))
            escaped = pa.array([self.escaped(value) for value in different.to_pylist()], pa.string())
            values = pc.take(escaped, pc.index_in(values, different))
        return [self.quote, values, self.quote]

    def value(self, values: pa.Array, *, is_upper: bool = False) -> list[Part] | None:
        """Values the way statistics write them; None for a type that statistics do not carry.

        Times have milliseconds there (Delta PROTOCOL, "Per-file Statistics"): a lower bound goes down, an upper up.
        """
        kind = values.type
        if pa.types.is_string(kind):
            return self.string(values)
        if pa.types.is_date(kind):
            return [self.quote, value_text(values), self.quote]
        if pa.types.is_timestamp(kind):
            text = pc.replace_substring(value_text(_milliseconds(values, is_upper=is_upper)), " ", "T")
            zone = "" if kind.tz is None else "Z"
            return [self.quote, pc.utf8_slice_codeunits(text, 0, MILLISECOND_CHARACTERS), zone + self.quote]
        if pa.types.is_floating(kind):
            finite = pc.is_finite(values)
            kept = values if pc.all(finite, min_count=0).as_py() else pc.if_else(finite, values, None)
            return [pc.cast(kept, pa.string())]
        if pa.types.is_integer(kind) or pa.types.is_decimal(kind):
            return [pc.cast(values, pa.string())]
        return None

    def object(self, members: Sequence[tuple[str, Sequence[Part]]]) -> list[Part]:
        """An object per row; a member that is null in a row is left out of it."""
        parts: list[Part] = []
        for name, value in members:
            named = [f",{self.quote}{self.escaped(name)}{self.quote}:", *value]
            parts += [pc.fill_null(join_parts(named), "")] if _has_nulls(value) else named
        if not parts:
            return ["{}"]
        if isinstance(parts[0], str):
            return ["{" + parts[0].removeprefix(","), *parts[1:], "}"]
        return ["{", pc.ascii_ltrim(join_parts(parts, null=""), ","), "}"]

    def escaped(self, value: str) -> str:
        """A string's characters as they stand between the quotes."""
        for _ in range(self.depth):
            value = json.dumps(value, ensure_ascii=False)[1:-1].replace("\x7f", "\\u007f")
        return value


PLAIN = JsonText('"', 1)
NESTED = JsonText('\\"', 2)


def join_parts(parts: Sequence[Part], null: str | None = None) -> pa.Array:
    """The parts as one column; a row with a null part is null, or has `null` in its place."""
    if null is None:
        return pc.binary_join_element_wise(*parts, "")
    return pc.binary_join_element_wise(*parts, "", null_handling="replace", null_replacement=null)


def value_text(values: pa.Array) -> pa.Array:
    """Values as the protocol writes partition values, without quotes. What it has no text for becomes null."""
    kind = values.type
    if pa.types.is_timestamp(kind):
        return pc.cast(
            pc.cast(_common_years(values, pa.int64(), MICROSECONDS), pa.timestamp("us")), pa.string()
        )
    if pa.types.is_date(kind):
        return pc.cast(_common_years(values, pa.int32(), DAYS), pa.string())
    if pa.types.is_binary(kind):
        return pa.nulls(len(values), pa.string())
    return pc.cast(values, pa.string())


def partition_text(values: pa.Array) -> pa.Array:
    """Partition values as text, null for a value without one.

    Times with a zone have the form that names it (Delta PROTOCOL, "Partition Value Serialization"): in the other form
    they would be of each client's own zone.
    """
    text = value_text(values)
    if not pa.types.is_timestamp(values.type) or values.type.tz is None:
        return text
    return pc.binary_join_element_wise(pc.replace_substring(text, " ", "T"), "Z", "")


def _milliseconds(values: pa.Array, *, is_upper: bool) -> pa.Array:
    """Times in microseconds, rounded to whole milliseconds."""
    numbers = pc.cast(values, pa.int64())
    # Arrow's division rounds towards zero, and a bound has to go its own way before 1970 too.
    part = pc.subtract(numbers, pc.multiply(pc.divide(numbers, 1000), 1000))
    down = pc.subtract(numbers, pc.if_else(pc.less(part, 0), pc.add(part, 1000), part))
    rounded = pc.if_else(pc.greater(numbers, down), pc.add(down, 1000), down) if is_upper else down
    return pc.cast(rounded, values.type)


def _has_nulls(parts: Sequence[Part]) -> bool:
    return any(not isinstance(part, str) and part.null_count for part in parts)


def _common_years(values: pa.Array, since: pa.DataType, limits: tuple[int, int]) -> pa.Array:
    """The values of four-digit years; others have no text that every reader takes."""
    numbers = pc.cast(values, since)
    ends = pc.min_max(numbers).as_py()
    if ends["min"] is None or (limits[0] <= ends["min"] and ends["max"] <= limits[1]):
        return values
    common = pc.and_(pc.greater_equal(numbers, limits[0]), pc.less_equal(numbers, limits[1]))
    return pc.if_else(common, values, None)


def column_of(table: pa.Table, name: str) -> pa.Array:
    """A column in one piece; what is one already is not copied."""
    column = table.column(name)
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


LINE_COLUMNS = ("parquet_id", "delta_id", "common", "delta_rest", "dv_path", "dv_file_id", "dv_rest")


def render_lines(files: pa.Table, partition_columns: tuple[str, ...]) -> list[pa.Array]:
    """The columns of `LINE_COLUMNS`, for one chunk of a snapshot's files."""
    names = column_of(files, "name")
    return [
        file_ids(names, hashlib.md5),
        file_ids(names, hashlib.sha256),
        _common(files, partition_columns),
        _delta_rest(files),
        *_vectors(files),
    ]


def file_ids(names: pa.Array, digest: Callable[..., "hashlib._Hash"]) -> pa.Array:
    """Ids as the reference server makes them, MD5 for parquet and SHA-256 for delta: of the path as the log has it."""
    digests = [digest(name, usedforsecurity=False).digest() for name in byte_strings(names)]
    width = digest(usedforsecurity=False).digest_size * 2
    return texts_of_width(b"".join(digests).hex().encode(), width)


def _common(files: pa.Table, partition_columns: tuple[str, ...]) -> pa.Array:
    parts = [
        '"partitionValues":',
        *_partition_values(files, partition_columns),
        ',"size":',
        pc.cast(column_of(files, "size"), pa.string()),
        *(_logged_stats(column_of(files, "stats")) if "stats" in files.column_names else _stats(files)),
    ]
    return join_parts(parts, null="")


def _partition_values(files: pa.Table, columns: tuple[str, ...]) -> list[Part]:
    if "partition_values" in files.column_names:
        texts = column_of(files, "partition_values")
        members = [(field.name, pc.struct_field(texts, [place])) for place, field in enumerate(texts.type)]
        return PLAIN.object([(name, _nullable_string(values)) for name, values in members])
    partition = column_of(files, "partition")
    return PLAIN.object(
        [
            (column, _nullable_string(partition_text(pc.struct_field(partition, [column]))))
            for column in columns
        ]
    )


def _nullable_string(texts: pa.Array) -> list[Part]:
    value = PLAIN.string(texts)
    return [pc.fill_null(join_parts(value), "null")] if texts.null_count else value


def _logged_stats(texts: pa.Array) -> list[Part]:
    """The log's own text inside a JSON string; nothing for a file without one."""
    if texts.null_count == len(texts):
        return []
    return [pc.fill_null(join_parts([',"stats":"', _quote(texts), '"']), "")]


def _quote(texts: pa.StringArray) -> pa.Array:
    """JSON as the content of a JSON string: with every quote escaped, and whatever else has to be."""
    if not is_plain(texts):
        return pa.array(
            [None if text is None else PLAIN.escaped(text) for text in texts.to_pylist()], pa.string()
        )
    return pc.replace_substring(texts, '"', '\\"')


def _stats(files: pa.Table) -> list[Part]:
    """`,"stats":"…"`: a JSON object inside a JSON string; null for a file of which the row count is not known."""
    rows = pc.cast(column_of(files, "rows"), pa.string())
    maxima = "told_max" if "told_max" in files.column_names else "max"
    members: list[tuple[str, list[Part]]] = [
        ("numRecords", [rows]),
        ("minValues", _struct(column_of(files, "min"), NESTED)),
        ("maxValues", _struct(column_of(files, maxima), NESTED, is_upper=True)),
        ("nullCount", _struct(column_of(files, "null_count"), NESTED)),
        # Iceberg's writers cut long texts, and clients may answer MIN and MAX from bounds that are not said to be
        # wide (Delta PROTOCOL, "Per-file Statistics").
        ("tightBounds", ["false"]),
    ]
    parts = [',"stats":"', *NESTED.object(members), '"']
    if not rows.null_count:
        return parts
    # Bounds without a row count are of no use to a reader, and Delta's own readers want the count.
    return [pc.if_else(pc.is_valid(rows), join_parts(parts, null=""), None)]


def _struct(values: pa.StructArray, text: JsonText, *, is_upper: bool = False) -> list[Part]:
    members: list[tuple[str, list[Part]]] = []
    for position, member in enumerate(values.type):
        inner = pc.struct_field(values, [position])
        if pa.types.is_struct(member.type):
            members.append((member.name, _struct(inner, text, is_upper=is_upper)))
        else:
            value = text.value(inner, is_upper=is_upper)
            if value is not None:
                members.append((member.name, value))
    return text.object(members)


def _delta_rest(files: pa.Table) -> pa.Array:
    parts: list[Part] = [
        ',"modificationTime":',
        pc.cast(pc.fill_null(column_of(files, "modification_time"), 0), pa.string()),
        ',"dataChange":true',
    ]
    parts += _optional(files, "base_row_id", lambda ids: [',"baseRowId":', pc.cast(ids, pa.string())])
    parts += _optional(
        files,
        "default_row_commit_version",
        lambda versions: [',"defaultRowCommitVersion":', pc.cast(versions, pa.string())],
    )
    parts += _optional(files, "tags", lambda values: [',"tags":', values])
    parts += _optional(
        files, "clustering_provider", lambda values: [',"clusteringProvider":', *PLAIN.string(values)]
    )
    parts += _optional(
        files,
        "dv_inline",
        lambda values: [
            ',"deletionVector":{"storageType":"i","pathOrInlineDv":',
            *PLAIN.string(values),
            *_vector_size(files),
            "}",
        ],
    )
    return join_parts(parts, null="")


def _vectors(files: pa.Table) -> list[pa.Array]:
    """Where deletion vectors are, their ids, and what follows their URL in the line."""
    count = files.num_rows
    if "dv_path" not in files.column_names or column_of(files, "dv_path").null_count == count:
        return [pa.nulls(count, pa.string())] * 3
    paths = column_of(files, "dv_path")
    in_files = pc.is_valid(paths)
    ids = pa.array(
        [one and hashlib.sha256(one.encode()).hexdigest() for one in column_of(files, "dv_id").to_pylist()]
    )
    rest = join_parts(['"', *_vector_size(files), "}"])
    return [paths, pc.if_else(in_files, ids, None), pc.if_else(in_files, rest, None)]


def _vector_size(files: pa.Table) -> list[Part]:
    offset = pc.cast(column_of(files, "dv_offset"), pa.string())
    return [
        pc.fill_null(join_parts([',"offset":', offset]), ""),
        ',"sizeInBytes":',
        pc.cast(column_of(files, "dv_size"), pa.string()),
        ',"cardinality":',
        pc.cast(column_of(files, "dv_cardinality"), pa.string()),
    ]


def _optional(files: pa.Table, name: str, said: Callable[[pa.Array], list[Part]]) -> list[Part]:
    """A member for the files that have it; nothing at all when none has."""
    if name not in files.column_names:
        return []
    values = column_of(files, name)
    return [] if values.null_count == len(values) else [pc.fill_null(join_parts(said(values)), "")]


ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
DIGIT = {character: value for value, character in enumerate(ALPHABET)}
# Two digits at a time: a vector of 50,000 bytes is 12,500 numbers of five digits.
PAIRS = [first + second for first in ALPHABET for second in ALPHABET]


def encode_z85(content: bytes) -> str:
    """The bytes in Z85, filled up with zeros to a multiple of four: their number has to be told beside them."""
    padded = content + bytes(-len(content) % 4)
    return "".join(_five_digits(number) for (number,) in struct.iter_unpack(">I", padded))


def decode_z85(text: str) -> bytes:
    """The bytes of a Z85 text.

    Raises:
        KeyError, ValueError, OverflowError: it is none.
    """
    if len(text) % 5:
        raise ValueError("Z85 comes in fives")
    decoded = bytearray()
    for start in range(0, len(text), 5):
        number = 0
        for character in text[start : start + 5]:
            number = number * 85 + DIGIT[character]
        decoded += number.to_bytes(4, "big")
    return bytes(decoded)


def _five_digits(number: int) -> str:
    upper, last = divmod(number, len(PAIRS))
    first, middle = divmod(upper, len(PAIRS))
    return ALPHABET[first] + PAIRS[middle] + PAIRS[last]
