"""The classes that the driver of the tests has of its own."""

import stat
from pathlib import Path
from zipfile import ZipFile

import pytest

from lakeshare_pipelines.wap.staged import Lake
from tests.conftest import SPARK_CLASSES


def test_the_jar_was_built_from_the_source_beside_it() -> None:
    folder = SPARK_CLASSES.parent
    with ZipFile(SPARK_CLASSES) as jar:
        sources = {name: jar.read(name) for name in jar.namelist() if name.endswith((".java", ".xml"))}
    of_folder = {
        path.name: path.read_bytes() for path in folder.iterdir() if path.suffix in (".java", ".xml")
    }
    assert sources == of_folder, "build the jar again"


def test_files_and_folders_have_the_modes_of_hadoop(lake: Lake, tmp_path: Path) -> None:
    assert (
        lake.spark.sparkContext._jsc.hadoopConfiguration().get("fs.file.impl") == "lakeshare.tests.LocalFiles"
    )
    lake.spark.range(1).write.parquet(f"file://{tmp_path}/written")
    written = [tmp_path / "written", *(tmp_path / "written").iterdir()]
    assert {stat.S_IMODE(path.stat().st_mode) for path in written if path.is_dir()} == {0o755}
    assert {stat.S_IMODE(path.stat().st_mode) for path in written if path.is_file()} == {0o644}


@pytest.mark.parametrize(
    "name",
    [
        "org.apache.spark.util.SparkClosureCleaner$",
        "org.apache.spark.sql.catalyst.rules.QueryExecutionMetering",
    ],
)
def test_classes_of_spark_are_replaced(lake: Lake, name: str) -> None:
    replaced = lake.spark._jvm.java.lang.Class.forName(name)
    assert replaced.getProtectionDomain().getCodeSource().getLocation().getPath() == str(SPARK_CLASSES)


def test_properties_of_yarn_and_mapreduce_are_left_out(lake: Lake) -> None:
    properties = lake.spark._jvm.org.apache.hadoop.mapred.JobConf()
    defaults = [properties.get(name) for name in ("yarn.resourcemanager.address", "mapreduce.framework.name")]
    assert defaults == [None, None]
