"""The replay of a copied log tells exactly which versions are complete: none that lacks a file, all that lack none."""

from pathlib import Path

import pytest

from lakeshare_pipelines.backup.model import open_database
from lakeshare_pipelines.backup.verify.delta import assess
from tests.builders.backup_lakes import AS_OF
from tests.builders.backup_replays import CASES, Case, copied


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_complete_versions_are_those_that_lack_nothing(case: Case, tmp_path: Path) -> None:
    copy = copied(case, tmp_path)
    with open_database() as database:
        found = assess(copy, AS_OF, database)
    assert sorted(count.version for count in found.complete) == case.complete
    counts = {version: found.counts[version].files for version in case.files}
    assert counts == case.files
    needed = {need.location.removeprefix(f"{copy.location}/") for need in found.needs}
    assert needed >= set(case.missing)
