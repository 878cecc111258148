"""Contracts: YAML that describes a set of tables, its rules and its recipients.

`flights.yaml` and `reference.yaml` are the sets that ship with the package.
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
