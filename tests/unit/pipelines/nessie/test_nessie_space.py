"""Space on disks: a full one is named before Nessie is started on it, and unused archives of classes are removed."""

import os
import time
from pathlib import Path

import pytest

from lakeshare_pipelines.errors import NessieError
from lakeshare_pipelines.nessie.server import ARCHIVE_KEPT_S, ensure_nessie, remove_unused_archives
from lakeshare_pipelines.settings import LakeSettings
from tests.builders.small_disk import fill, small_disk


def test_nessie_is_not_started_on_a_full_disk(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1 << 20) as disk:
        settings = LakeSettings(state_dir=disk / "state", nessie_uri=None)
        (disk / "state" / "nessie").mkdir(parents=True)
        fill(disk)
        with pytest.raises(
            NessieError, match=rf"the disk of {settings.state_dir}/nessie has 0 bytes left"
        ) as raised:
            ensure_nessie(settings)
    assert raised.value.code == "DISK_FULL"
    assert "LAKESHARE_STATE_DIR" in str(raised.value)


def test_archives_of_a_java_that_is_not_used_any_more_are_removed(tmp_path: Path) -> None:
    names = [f"{stem}{digest}.jsa" for digest in ("aa11", "bb22") for stem in ("java-", "nessie-0.99.0.")]
    for name in (*names, "nessie-0.99.0.jar"):
        (tmp_path / name).touch()
    used = time.time() - ARCHIVE_KEPT_S
    os.utime(tmp_path / "java-aa11.jsa", (used + 60, used + 60))
    for name in names[1:]:
        os.utime(tmp_path / name, (used - 60, used - 60))
    remove_unused_archives(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "java-aa11.jsa",
        "nessie-0.99.0.aa11.jsa",
        "nessie-0.99.0.jar",
    ]
