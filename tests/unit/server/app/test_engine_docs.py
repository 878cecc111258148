"""The pages on engines name every engine, every setting of Snowflake's, and no command that is not there."""

import re
from pathlib import Path
from typing import get_args

import pytest

from lakeshare_pipelines.settings import LakeSettings
from lakeshare_server.snippets import EngineName

DOCS = Path(__file__).parents[4] / "docs"
SNIPPETS = (DOCS / "reference/snippets.md").read_text()
SNOWFLAKE = (DOCS / "how-to/follow-with-snowflake.md").read_text()
SPARED = {"snowflake_url", "snowflake_login_s"}  # for stand-ins and slow networks: .env.example has them


@pytest.mark.parametrize("engine", get_args(EngineName))
def test_every_engine_has_its_row(engine: str) -> None:
    assert f"\n| `{engine}` |" in SNIPPETS


@pytest.mark.parametrize(
    "field", sorted(name for name in LakeSettings.model_fields if name.startswith("snowflake_"))
)
def test_every_setting_is_named(field: str) -> None:
    short = field.upper().removeprefix("SNOWFLAKE")
    assert field in SPARED or f"LAKESHARE_{field.upper()}`" in SNOWFLAKE or f"`{short}`" in SNOWFLAKE


def test_the_settings_that_are_named_are_there() -> None:
    named = set(re.findall(r"LAKESHARE_(SNOWFLAKE_[A-Z_]+)", SNOWFLAKE))
    assert {name.lower() for name in named} <= set(LakeSettings.model_fields)


@pytest.mark.parametrize("text", [SNIPPETS, SNOWFLAKE])
def test_the_links_lead_somewhere(text: str) -> None:
    for target in re.findall(r"\]\(([^)#]+)", text):
        assert any((DOCS / folder / target).exists() for folder in ("how-to", "reference")), target
