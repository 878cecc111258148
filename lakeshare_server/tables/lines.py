"""The lines of a file in both response formats, rendered at publication but for its URLs and what a request adds.

A line is put together from columns: ids, `common` (what both formats say in the same words), `delta_rest` (what only
the delta format says), and for deletion vectors in files of their own `dv_rest`, which a second URL completes.
"""

import hashlib
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_server.tables.arrays import column_of
from lakeshare_server.tables.byte_strings import byte_strings, is_plain, texts_of_width
from lakeshare_server.tables.json_text import NESTED, PLAIN, JsonText, Part, joined, partition_text

# What every index has for a file's lines; those of deletion vectors are null for files without one.
LINE_COLUMNS = ("parquet_id", "delta_id", "common", "delta_rest", "dv_path", "dv_file_id", "dv_rest")


def rendered(files: pa.Table, partition_columns: tuple[str, ...]) -> list[pa.Array]:
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
    return joined(parts, null="")


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
    return [pc.fill_null(joined(value), "null")] if texts.null_count else value


def _logged_stats(texts: pa.Array) -> list[Part]:
    """The log's own text inside a JSON string; nothing for a file without one."""
    if texts.null_count == len(texts):
        return []
    return [pc.fill_null(joined([',"stats":"', _quoted(texts), '"']), "")]


def _quoted(texts: pa.StringArray) -> pa.Array:
    """JSON as the content of a JSON string: with every quote escaped, and whatever else has to be."""
    if not is_plain(texts):
        return pa.array(
            [None if one is None else PLAIN.escaped(one) for one in texts.to_pylist()], pa.string()
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
    return [pc.if_else(pc.is_valid(rows), joined(parts, null=""), None)]


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
    return joined(parts, null="")


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
    rest = joined(['"', *_vector_size(files), "}"])
    return [paths, pc.if_else(in_files, ids, None), pc.if_else(in_files, rest, None)]


def _vector_size(files: pa.Table) -> list[Part]:
    offset = pc.cast(column_of(files, "dv_offset"), pa.string())
    return [
        pc.fill_null(joined([',"offset":', offset]), ""),
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
    return [] if values.null_count == len(values) else [pc.fill_null(joined(said(values)), "")]
