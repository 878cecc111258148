"""All families of hostile tables, in the order in which they are made: the long ones first."""

from tests.builders.hostile import (
    changes,
    features,
    handwritten,
    logs,
    mapping,
    names,
    types,
    upstream,
    vectors,
)
from tests.builders.hostile.place import TABLES

FAMILIES = (changes, logs, vectors, mapping, types, names, features, handwritten, upstream)

__all__ = ["FAMILIES", "TABLES"]
