"""Contracts: YAML that describes a set of tables, its rules and its recipients.

`flights.yaml` and `reference.yaml` are the sets that ship with the package.
"""

from lakeshare_pipelines.contracts.loader import load_connected, load_contract, load_contracts
from lakeshare_pipelines.contracts.model import Column, Reference, SetContract, Table
from lakeshare_pipelines.contracts.rules import Rule

__all__ = [
    "Column",
    "Reference",
    "Rule",
    "SetContract",
    "Table",
    "load_connected",
    "load_contract",
    "load_contracts",
]
