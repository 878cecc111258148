"""Fixtures of the contract tests: a provider of its own for each test."""

from pathlib import Path

import pytest

from tests.builders.sharing import Provider, a_provider


@pytest.fixture
def provider(tmp_path: Path) -> Provider:
    return a_provider(tmp_path)
