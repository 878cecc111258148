"""The Java that fits is taken in a fixed order; one that does not is passed over with a word why."""

import logging
from pathlib import Path

import pytest

from lakeshare_pipelines.errors import JavaError
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.spark import jars
from lakeshare_pipelines.spark.jars import find_java, list_candidates

ANSWER = """\
#!/bin/sh
echo "Property settings:" >&2
echo "    java.home = {home}" >&2
echo "    java.specification.version = {version}" >&2
"""


def a_java(folder: Path, version: str) -> Path:
    """A home whose `java` answers as that version does when it is asked who it is."""
    home = folder / f"java-{version}"
    binary = home / "bin" / "java"
    binary.parent.mkdir(parents=True)
    binary.write_text(ANSWER.format(home=home, version=version))
    binary.chmod(0o755)
    return home


def settings_of(tmp_path: Path, java_home: Path | None = None) -> LakeSettings:
    return LakeSettings(state_dir=tmp_path / "state", java_home=java_home)


@pytest.fixture(autouse=True)
def bare_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No Java but those a test makes: in `usual`, on the PATH `path`, or from the package."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "path" / "bin"))
    monkeypatch.setattr(jars, "USUAL_FOLDERS", (str(tmp_path / "usual" / "*"),))
    monkeypatch.setattr(jars, "find_packaged_java", lambda: None)


@pytest.mark.parametrize(
    ("version", "spark", "nessie"),
    [
        ("21", True, True),
        ("17", True, False),
        ("25", False, False),
        ("1.8", False, False),
        ("22", False, False),
    ],
)
def test_only_tested_versions_serve(tmp_path, version, spark, nessie):
    a_java(tmp_path / "usual", version)
    [candidate] = list_candidates(settings_of(tmp_path))
    assert (candidate.serves("spark"), candidate.serves("nessie")) == (spark, nessie)
    assert set(candidate.refusals) == {
        p for p, serves in (("spark", spark), ("nessie", nessie)) if not serves
    }


@pytest.mark.parametrize(
    ("version", "word"), [("25", "too new"), ("11", "too old"), ("19", "no long-term release")]
)
def test_a_java_that_does_not_serve_says_why(tmp_path, version, word):
    a_java(tmp_path / "usual", version)
    [candidate] = list_candidates(settings_of(tmp_path))
    assert f"Java {version}" in candidate.refusals["spark"]
    assert word in candidate.refusals["spark"]


def test_the_setting_comes_before_java_home_path_and_the_usual_folders(tmp_path, monkeypatch):
    named, home = a_java(tmp_path / "named", "21"), a_java(tmp_path / "home", "21")
    usual = a_java(tmp_path / "usual", "17")
    a_java(tmp_path / "on", "21").rename(tmp_path / "path")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert find_java("spark", settings_of(tmp_path, named)).home == named
    assert find_java("spark", settings_of(tmp_path)).home == home
    monkeypatch.delenv("JAVA_HOME")
    assert find_java("spark", settings_of(tmp_path)).origin == "PATH"
    monkeypatch.setenv("PATH", "")
    assert find_java("spark", settings_of(tmp_path)).home == usual


def test_a_25_is_passed_over_with_a_word_why(tmp_path, monkeypatch, caplog):
    newest = a_java(tmp_path / "home", "25")
    monkeypatch.setenv("JAVA_HOME", str(newest))
    usable = a_java(tmp_path / "usual", "21")
    with caplog.at_level(logging.WARNING, logger="lakeshare_pipelines"):
        assert find_java("spark", settings_of(tmp_path)).home == usable
        assert find_java("spark", settings_of(tmp_path)).home == usable
    assert [record.getMessage() for record in caplog.records] == [
        f"passed over the Java in {newest} (from JAVA_HOME): "
        "Java 25 is too new: Spark 4.1 calls parts of Java that are gone after 21 (getSubject)"
    ]


def test_the_package_is_the_last_resort(tmp_path, monkeypatch):
    packaged = a_java(tmp_path / "packaged", "21")
    monkeypatch.setattr(jars, "find_packaged_java", lambda: packaged)
    seventeen = a_java(tmp_path / "usual", "17")
    assert find_java("spark", settings_of(tmp_path)).home == seventeen
    assert find_java("nessie", settings_of(tmp_path)).home == packaged


def test_without_a_java_the_error_names_what_was_passed_over_and_the_remedy(tmp_path):
    a_java(tmp_path / "usual", "17")
    with pytest.raises(JavaError) as raised:
        find_java("nessie", settings_of(tmp_path))
    assert "no Java 21 for Nessie" in raised.value.reason
    assert "Java 17 is too old" in raised.value.reason
    assert "LAKESHARE_JAVA_HOME" in raised.value.fix


@pytest.mark.parametrize("content", [None, "#!/bin/sh\nexit 1\n", "#!/bin/sh\necho hello >&2\n"])
def test_a_setting_that_holds_no_java_is_an_error_and_not_passed_over(tmp_path, content):
    a_java(tmp_path / "usual", "21")
    binary = tmp_path / "named" / "bin" / "java"
    binary.parent.mkdir(parents=True)
    if content is not None:
        binary.write_text(content)
        binary.chmod(0o755)
    with pytest.raises(JavaError, match="LAKESHARE_JAVA_HOME="):
        find_java("spark", settings_of(tmp_path, tmp_path / "named"))


def test_a_java_reached_by_several_ways_is_listed_once(tmp_path, monkeypatch):
    home = a_java(tmp_path / "usual", "21")
    (tmp_path / "usual" / "default").symlink_to(home)
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert [candidate.origin for candidate in list_candidates(settings_of(tmp_path))] == ["JAVA_HOME"]
