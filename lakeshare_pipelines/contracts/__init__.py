"""Contracts: what a set of tables is, what must be true of it, and who may read it.

model.py the records the pipelines use; loader.py how they come from YAML; describe.py how a person sees them.
The sets that ship with the package lie beside the code: flights.yaml, reference.yaml.
"""

from lakeshare_pipelines.contracts.loader import load_contract, load_contracts
from lakeshare_pipelines.contracts.model import (
    Column,
    Drift,
    PerRecipient,
    Promise,
    Reading,
    Reference,
    Rule,
    SetContract,
    ShareEntry,
    SnowflakeEntry,
    Table,
    View,
    describe,
)

__all__ = [
    "Column",
    "Drift",
    "PerRecipient",
    "Promise",
    "Reading",
    "Reference",
    "Rule",
    "SetContract",
    "ShareEntry",
    "SnowflakeEntry",
    "Table",
    "View",
    "describe",
    "load_contract",
    "load_contracts",
]
