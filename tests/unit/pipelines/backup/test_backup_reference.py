"""The reference of backups has every field of what is declared, and its example is one that can be declared."""

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from lakeshare_pipelines.backup.config import Backup, load_backups
from lakeshare_pipelines.settings import LakeSettings
from tests.builders.backup_reference import PARTS, with_tables

PAGE = Path(__file__).parents[4] / "docs/reference/backup.md"


def test_the_tables_are_those_of_what_is_declared() -> None:
    """`python -m tests.builders.backup_reference` brings them up to date."""
    page = PAGE.read_text()
    assert with_tables(page) == page


def test_every_part_of_the_declaration_has_its_table() -> None:
    def parts(model: type[BaseModel]) -> set[str]:
        schema = model.model_json_schema()
        return {str(schema["title"]), *schema.get("$defs", {})}

    assert {part.__name__ for part in PARTS} == parts(Backup)


@pytest.mark.parametrize("page", [PAGE, PAGE.parents[1] / "how-to/take-listings.md"])
def test_the_examples_can_be_declared(tmp_path: Path, page: Path) -> None:
    example = re.findall(r"^```yaml\n(backups:.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)[0]
    path = tmp_path / "backups.yaml"
    path.write_text(example)
    (backup,) = load_backups(LakeSettings(_env_file=None, state_dir=tmp_path, backups_file=path))
    assert (backup.name, backup.listing.kind) == ("lake", "s3_inventory")


def test_a_page_without_a_place_for_the_tables_is_refused() -> None:
    with pytest.raises(ValueError, match="needs the lines"):
        with_tables("# Backups")
