"""Between Arrow's text columns and Python's bytes, several times faster than a scalar for each value."""

from itertools import pairwise

import pyarrow as pa


def byte_strings(values: pa.StringArray) -> list[bytes]:
    """The UTF-8 of each text of a column without nulls."""
    _, offsets, characters = values.buffers()
    if characters is None:
        return [b""] * len(values)
    ends = memoryview(offsets).cast("i")[values.offset : values.offset + len(values) + 1].tolist()
    first = ends[0]
    text = memoryview(characters)[first : ends[-1]].tobytes()
    return [text[start - first : end - first] for start, end in pairwise(ends)]


def texts_of_width(characters: bytes, width: int) -> pa.StringArray:
    """A column of ASCII texts that are all `width` characters long and stand one after the other."""
    ends = pa.array(range(0, len(characters) + 1, width), pa.int32())
    return pa.StringArray.from_buffers(len(ends) - 1, ends.buffers()[1], pa.py_buffer(characters))
