"""Nessie is not started on a full disk: the error names it."""

from pathlib import Path

import pytest

from lakeshare_pipelines.errors import NessieError
from lakeshare_pipelines.nessie.server import ensure_nessie
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
