"""The reference of the contract names every property of ours, every column field that counts, and every expectation."""

from pathlib import Path

import pytest
from pydantic import TypeAdapter

from lakeshare_pipelines.contracts.document import (
    ColumnExtras,
    PromiseExtras,
    ReferenceExtras,
    RuleExtras,
    SetExtras,
    TableExtras,
)
from lakeshare_pipelines.contracts.model import Drift, PerRecipient, Reading, View, Write
from lakeshare_pipelines.contracts.rules import EXPECTATIONS
from lakeshare_pipelines.ingest.compression import CODECS
from lakeshare_pipelines.ingest.delivery import BINARY_SUFFIXES, TEXT_SUFFIXES

TEXT = (Path(__file__).parents[4] / "docs/reference/contract.md").read_text()
EXTRAS: tuple[type, ...] = (
    *(SetExtras, TableExtras, ColumnExtras, RuleExtras, ReferenceExtras),
    *(Drift, Reading, PromiseExtras, View, PerRecipient, Write),
)


@pytest.mark.parametrize(
    "name", sorted({name for part in EXTRAS for name in TypeAdapter(part).json_schema()["properties"]})
)
def test_every_property_of_ours_is_explained(name: str) -> None:
    assert f"`{name}`" in TEXT or f"property: {name}," in TEXT


@pytest.mark.parametrize("name", sorted(EXPECTATIONS))
def test_every_expectation_is_listed(name: str) -> None:
    assert f"`{name}`" in TEXT


@pytest.mark.parametrize("ending", sorted([*TEXT_SUFFIXES, *BINARY_SUFFIXES, *CODECS]))
def test_every_file_ending_is_listed(ending: str) -> None:
    assert f"`{ending}`" in TEXT
