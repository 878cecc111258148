"""A Java without the module Spark asks for gets a stand-in home that drops the question and nothing else."""

import subprocess
import threading
from pathlib import Path

import pytest

from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.spark.jars import Java
from lakeshare_pipelines.spark.session import VECTOR_MODULE, prepare_java_home

ECHO = """\
#!/bin/sh
if [ "$1" = --list-modules ]; then echo 'java.base@21.0.8'; {more} exit; fi
printf '%s\\n' "$0" "$@"
exit 7
"""


def a_java(folder: Path, *, with_module: bool) -> Java:
    """A home whose `java` lists its modules, or else prints how it was called and exits with 7."""
    more = f"echo '{VECTOR_MODULE}@21.0.8';" if with_module else ""
    for name in ("bin", "lib", "conf"):
        (folder / name).mkdir(parents=True)
    java = Java(folder, 21, "test")
    java.binary.write_text(ECHO.format(more=more))
    java.binary.chmod(0o755)
    return java


@pytest.fixture
def settings(tmp_path: Path) -> LakeSettings:
    return LakeSettings(state_dir=tmp_path / "state")


def test_a_java_with_the_module_is_used_as_it_is(tmp_path, settings):
    java = a_java(tmp_path / "jdk", with_module=True)
    assert prepare_java_home(java, settings) == java.home
    assert not settings.state_dir.exists()


def test_only_the_one_argument_is_dropped(tmp_path, settings):
    java = a_java(tmp_path / "jre of mine", with_module=False)
    home = prepare_java_home(java, settings)
    arguments = ["-Xmx1g", "a b", f"--add-modules={VECTOR_MODULE}", "", "--add-modules=java.base", "$HOME"]
    run = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True)
    assert run.stdout.split("\n")[:-1] == [
        str(java.binary),
        "-Xmx1g",
        "a b",
        "",
        "--add-modules=java.base",
        "$HOME",
    ]
    assert run.returncode == 7
    assert (home / "lib").resolve() == java.home / "lib"


def test_it_is_built_once_whoever_comes_first(tmp_path, settings):
    java = a_java(tmp_path / "jre", with_module=False)
    homes: list[Path] = []
    threads = [
        threading.Thread(target=lambda: homes.append(prepare_java_home(java, settings))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(homes) == 8
    assert [homes[0]] == list((settings.state_dir / "java").iterdir())


def test_another_java_has_another_stand_in(tmp_path, settings):
    one, two = (a_java(tmp_path / name, with_module=False) for name in ("one", "two"))
    assert prepare_java_home(one, settings) != prepare_java_home(two, settings)
