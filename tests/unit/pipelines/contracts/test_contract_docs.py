"""The reference of the contract names every property of ours, every column field that counts, and every expectation."""

from pathlib import Path

import pytest

from lakeshare_pipelines.contracts.document import get_document
from lakeshare_pipelines.contracts.model import (
    Column,
    Drift,
    PerRecipient,
    Promise,
    Reading,
    Reference,
    SetContract,
    Table,
    View,
    Write,
)
from lakeshare_pipelines.contracts.rules import EXPECTATIONS, Rule
from lakeshare_pipelines.ingest.compression import CODECS
from lakeshare_pipelines.ingest.delivery import BINARY_SUFFIXES, TEXT_SUFFIXES

TEXT = (Path(__file__).parents[4] / "docs/reference/contract.md").read_text()
ELEMENTS = (SetContract, Table, Column, Rule, Reference)
VALUES = (Drift, Reading, Promise, View, PerRecipient, Write)
NAMES = {
    *(name for kind in ELEMENTS for name in get_document(kind).known),
    *(name for kind in VALUES for name in get_document(kind).model_json_schema()["properties"]),
}


@pytest.mark.parametrize("name", sorted(NAMES))
def test_every_property_of_ours_is_explained(name: str) -> None:
    assert f"`{name}`" in TEXT or f"property: {name}," in TEXT


@pytest.mark.parametrize("name", sorted(EXPECTATIONS))
def test_every_expectation_is_listed(name: str) -> None:
    assert f"`{name}`" in TEXT


@pytest.mark.parametrize("ending", sorted([*TEXT_SUFFIXES, *BINARY_SUFFIXES, *CODECS]))
def test_every_file_ending_is_listed(ending: str) -> None:
    assert f"`{ending}`" in TEXT
