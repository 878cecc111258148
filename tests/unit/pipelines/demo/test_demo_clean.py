"""Cleaning up after the demo removes what the demo made and nothing else; a lake it did not make is refused."""

from pathlib import Path

import pytest

from lakeshare_pipelines.demo.story import MARKER, DemoRefused, clean_up, run_demo


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state folder of the demo, in a folder that is no checkout."""
    state = a_folder(tmp_path / "state", MARKER)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAKESHARE_STATE_DIR", str(state))
    # Set and then deleted, so that what clean_up sets is undone as well.
    monkeypatch.setenv("DAGSTER_HOME", "")
    monkeypatch.delenv("DAGSTER_HOME")
    return state


def a_folder(folder: Path, *files: str) -> Path:
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}")
    return folder


def found_in(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_runs_in_the_checkout_go_and_its_configuration_stays(tmp_path, state):
    home = a_folder(tmp_path / "dagster_home", "dagster.yaml", "history/runs.db", "nux.yaml")

    assert clean_up() == 0

    assert found_in(home) == ["dagster.yaml"]
    assert not state.exists()


def test_without_a_checkout_the_runs_go_with_the_state(state):
    a_folder(state, "dagster_home/history/runs.db")

    assert clean_up() == 0

    assert not state.exists()


@pytest.mark.parametrize("in_checkout", [False, True])
def test_a_dagster_home_that_was_given_is_left_alone(tmp_path, state, monkeypatch, capsys, in_checkout):
    if in_checkout:
        a_folder(tmp_path / "dagster_home", "dagster.yaml", "history/runs.db")
    given = a_folder(tmp_path / "given", "history/runs.db")
    monkeypatch.setenv("DAGSTER_HOME", str(given))

    assert clean_up() == 0

    assert found_in(given) == ["history/runs.db"]
    assert str(given) in capsys.readouterr().out
    assert not state.exists()
    if in_checkout:
        assert found_in(tmp_path / "dagster_home") == ["dagster.yaml", "history/runs.db"]


@pytest.mark.parametrize("start", [clean_up, lambda: run_demo(once=True)], ids=["clean", "once"])
def test_a_lake_that_the_demo_did_not_make_is_refused_and_left_as_it_is(state, start):
    (state / MARKER).unlink()
    a_folder(state, "precious.db")

    with pytest.raises(DemoRefused, match="LAKESHARE_STATE_DIR"):
        start()

    assert found_in(state) == ["precious.db"]


def test_a_demo_with_another_store_is_refused_and_stays(state):
    (state / MARKER).write_text('{"store": "s3"}')

    with pytest.raises(DemoRefused, match=r"a demo with --store s3.*`lakeshare demo --clean`"):
        run_demo(once=True)

    assert found_in(state) == [MARKER]
