"""Iceberg tables of every kind, each a plan by its name; who reads them is in test_iceberg_matrix.py."""

from tests.builders.iceberg_matrix import deletes, evolution, layouts, partitions, types
from tests.builders.iceberg_matrix.plan import Plan

FAMILIES = (evolution, partitions, types, layouts, deletes)
TABLES: dict[str, Plan] = {name: plan for family in FAMILIES for name, plan in family.TABLES.items()}
assert len(TABLES) == sum(len(family.TABLES) for family in FAMILIES), "two tables have one name"

__all__ = ["TABLES", "Plan"]
