"""The classes that the driver of the tests has of its own."""

import stat
from pathlib import Path
from zipfile import ZipFile

from lakeshare_pipelines.wap.staged import Lake
from tests.conftest import SPARK_CLASSES


def test_the_jar_was_built_from_the_source_beside_it() -> None:
    with ZipFile(SPARK_CLASSES) as jar:
        for source in (*SPARK_CLASSES.parent.glob("*.java"), *SPARK_CLASSES.parent.glob("*.xml")):
            assert jar.read(source.name) == source.read_bytes(), f"{source.name}: build the jar again"


def test_files_and_folders_have_the_modes_of_hadoop(lake: Lake, tmp_path: Path) -> None:
    assert (
        lake.spark.sparkContext._jsc.hadoopConfiguration().get("fs.file.impl") == "lakeshare.tests.LocalFiles"
    )
    lake.spark.range(1).write.parquet(f"file://{tmp_path}/written")
    written = [tmp_path / "written", *(tmp_path / "written").iterdir()]
    assert {stat.S_IMODE(path.stat().st_mode) for path in written if path.is_dir()} == {0o755}
    assert {stat.S_IMODE(path.stat().st_mode) for path in written if path.is_file()} == {0o644}


def test_closures_are_not_checked_before_each_job(lake: Lake) -> None:
    cleaner = lake.spark._jvm.java.lang.Class.forName("org.apache.spark.util.SparkClosureCleaner$")
    assert cleaner.getProtectionDomain().getCodeSource().getLocation().getPath() == str(SPARK_CLASSES)


def test_rules_are_not_counted_for_each_plan(lake: Lake) -> None:
    lake.spark.range(1).collect()
    counted = lake.spark._jvm.org.apache.spark.sql.catalyst.rules.RuleExecutor.getCurrentMetrics()
    assert counted.numRuns() == 0


def test_no_configuration_has_the_defaults_of_yarn(lake: Lake) -> None:
    conf = lake.spark._jsparkSession.sessionState().newHadoopConf()
    assert conf.get("mapreduce.job.maps") is not None
    assert conf.get("yarn.resourcemanager.hostname") is None
