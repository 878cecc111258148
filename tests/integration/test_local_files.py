"""Spark of the tests sets permissions of files by a system call, with the modes that Hadoop's `chmod` sets."""

import stat
from pathlib import Path
from zipfile import ZipFile

from lakeshare_pipelines.wap.staged import Lake
from tests.conftest import LOCAL_FILES


def test_the_jar_was_built_from_the_source_beside_it() -> None:
    with ZipFile(LOCAL_FILES) as jar:
        for name in ("LocalFiles.java", "core-site.xml"):
            assert jar.read(name) == LOCAL_FILES.with_name(name).read_bytes(), f"{name}: build the jar again"


def test_files_and_folders_have_the_modes_of_hadoop(lake: Lake, tmp_path: Path) -> None:
    assert (
        lake.spark.sparkContext._jsc.hadoopConfiguration().get("fs.file.impl") == "lakeshare.tests.LocalFiles"
    )
    lake.spark.range(1).write.parquet(f"file://{tmp_path}/written")
    written = [tmp_path / "written", *(tmp_path / "written").iterdir()]
    assert {stat.S_IMODE(path.stat().st_mode) for path in written if path.is_dir()} == {0o755}
    assert {stat.S_IMODE(path.stat().st_mode) for path in written if path.is_file()} == {0o644}
