"""`lakeshare init` makes a project whose settings work in its folder, and replaces nothing."""

import tomllib
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from lakeshare_pipelines import contracts
from lakeshare_pipelines.cli import project
from lakeshare_pipelines.cli.main import app
from lakeshare_pipelines.cli.project import TEMPLATES
from lakeshare_pipelines.contracts import SetContract
from lakeshare_pipelines.settings import SHORT_RUNS, LakeSettings
from tests.builders.gold_sets import write_sums


def test_the_settings_of_a_project_are_relative_to_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in LakeSettings.model_fields:
        monkeypatch.delenv(f"LAKESHARE_{name.upper()}", raising=False)
    folder = tmp_path / "My Shop"
    ended = CliRunner().invoke(app, ["init", str(folder), "--no-prepare"])
    assert ended.exit_code == 0, ended.output
    assert "made in My Shop/: contracts/, pyproject.toml" in ended.output

    monkeypatch.chdir(folder)
    settings = LakeSettings()
    assert (settings.state_dir, settings.contracts_dir) == (folder / ".lakeshare", folder / "contracts")
    assert (settings.landing_root, settings.lake_root) == (str(folder / "landing"), str(folder / "warehouse"))
    assert settings.spark_driver_options == SHORT_RUNS

    project = tomllib.loads((folder / "pyproject.toml").read_text())
    assert project["project"]["name"] == "my-shop"
    assert project["project"]["dependencies"] == ["lakeshare[pipelines]"]
    assert project["tool"]["dagster"]["module_name"] == "definitions"
    workflow = yaml.safe_load((folder / ".github/workflows/lakeshare.yaml").read_text())
    runs = [step["run"] for step in workflow["jobs"]["contracts"]["steps"] if "run" in step]
    assert runs[1:3] == ["lakeshare contract check", "python -m pytest"]
    assert 'git diff --name-only --diff-filter=M "origin/$GITHUB_BASE_REF"' in runs[3]
    assert yaml.safe_load((folder / "dagster_home/dagster.yaml").read_text())["concurrency"]
    assert [name for name in TEMPLATES if "$name" in (folder / name).read_text()] == []


def test_a_folder_with_files_of_a_project_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("mine")
    (tmp_path / "definitions.py").write_text("mine")
    ended = CliRunner().invoke(app, ["init", str(tmp_path)])
    assert ended.exit_code == 1
    assert "definitions.py, README.md, which would be replaced" in str(ended.exception)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["README.md", "definitions.py"]
    for path in ("README.md", "README.md/below"):
        ended = CliRunner().invoke(app, ["init", str(tmp_path / path)])
        assert "It cannot be made (Not a directory); give a folder." in str(ended.exception)


def test_a_set_that_arrives_by_day_needs_the_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKESHARE_STATE_DIR", str(tmp_path / "state"))
    flights = str(Path(contracts.__file__).with_name("flights.yaml"))
    for command in (["publish", "flights"], ["contract", "test", flights, "--on", "x.csv"]):
        ended = CliRunner().invoke(app, command)
        assert ended.exit_code == 1
        assert "--partition" in str(ended.exception)
        assert "flights arrives by day" in str(ended.exception)
    ended = CliRunner().invoke(app, ["publish", "flights", "--partition", "yesterday", "--on", flights])
    assert "'yesterday' is no partition of set flights" in str(ended.exception)
    assert not (tmp_path / "state").exists()


def test_a_late_delivery_is_refused_before_anything_is_delivered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKESHARE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("LAKESHARE_CONTRACTS_DIR", str(tmp_path))
    flights = Path(contracts.__file__).with_name("flights.yaml").read_text()
    daily = "{property: partitioning, value: daily}"
    assert daily in flights
    late = daily.replace("daily", "{kind: daily, latenessHours: 48}")
    (tmp_path / "flights.yaml").write_text(flights.replace(daily, late))
    command = ["publish", "flights", "--partition", "2013-01-01"]
    ended = CliRunner().invoke(app, [*command, "--on", str(tmp_path / "flights.yaml")])
    assert ended.exit_code == 1
    assert "takes deliveries for 48 hours after that (latenessHours)" in str(ended.exception)
    assert not (tmp_path / "state").exists()
    ended = CliRunner().invoke(app, [*command, "--allow-late"])
    assert "delivery flights/2013-01-01: has not arrived" in str(ended.exception)


def write_sets(folder: Path, *names: str) -> None:
    """The contracts of the demo's flights, and of sets that are sums of them."""
    for name in ("flights", "reference"):
        (folder / f"{name}.yaml").write_bytes(Path(contracts.__file__).with_name(f"{name}.yaml").read_bytes())
    for name in names:
        write_sums(folder, name, "flights", "delta")
        text = (folder / f"{name}.yaml").read_text().replace("flights.days", "flights.daily_delays")
        (folder / f"{name}.yaml").write_text(text.replace("{days}", "{daily_delays}"))


REFUSED = {
    "flights --partition 2013-01-09...2013-01-02": "Give the first and the last day of a range, in this order",
    "flights --partition 2013-01-01...soon": "'soon' is no partition of set flights",
    "flights --partition 2013-01-01...2013-01-02 --on x.csv": "Files are the delivery of one partition",
    "flights --partition 2013-01-01 --pin reference.airports": "Write each input as set.table@number",
    "flights --partition 2013-01-01...2013-01-02": "delivery flights/2013-01-01: has not arrived",
    "sums --on x.csv": "Set sums takes no deliveries: leave it out",
    "flights sums --on x.csv": "publish that one by itself",
    "sums flights --pin reference.airports@1": "publish that one by itself",
    "sums flights": "Set flights arrives by day: give it",
    "sums flights --partition 2013-01-01": "'2013-01-01' is no partition of set sums",
}


def test_what_cannot_be_published_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_sets(tmp_path, "sums")
    monkeypatch.setenv("LAKESHARE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("LAKESHARE_CONTRACTS_DIR", str(tmp_path))
    for arguments, message in REFUSED.items():
        ended = CliRunner().invoke(app, ["publish", *arguments.split()])
        assert ended.exit_code == 1, arguments
        assert message in str(ended.exception), arguments
    assert not (tmp_path / "state").exists()


def test_sets_run_in_the_given_order_and_none_after_one_that_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_sets(tmp_path, "sums", "counts", "totals")
    monkeypatch.setenv("LAKESHARE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("LAKESHARE_CONTRACTS_DIR", str(tmp_path))
    ran: list[str] = []

    def publish_but_counts(_settings: object, contract: SetContract, *_: object, **__: object) -> bool:
        ran.append(contract.name)
        return contract.name != "counts"

    monkeypatch.setattr(project, "_publish_partitions", publish_but_counts)
    assert CliRunner().invoke(app, ["publish", "totals", "counts", "sums"]).exit_code == 1
    assert ran == ["totals", "counts"]
    assert CliRunner().invoke(app, ["publish", "sums", "totals", "sums"]).exit_code == 0
    assert ran[2:] == ["sums", "totals"]


def test_a_draft_replaces_no_contract(tmp_path: Path) -> None:
    from lakeshare_pipelines.cli.contract import write_contract
    from lakeshare_pipelines.errors import ContractError
    from lakeshare_server.errors import BadRequest

    path = tmp_path / "orders.yaml"
    with pytest.raises(ContractError):
        write_contract(path, "kind: nothing")
    assert not path.exists()
    path.write_text("mine")
    with pytest.raises(BadRequest, match="There is such a file"):
        write_contract(path, "kind: nothing")
    assert path.read_text() == "mine"
    with pytest.raises(BadRequest, match="No file can be made there: File exists"):
        write_contract(path / "orders.yaml", "kind: nothing")


def test_objects_of_a_store_are_copied_for_a_draft_and_markers_are_not(tmp_path: Path) -> None:
    from lakeshare_pipelines.cli.contract import fetch_objects
    from lakeshare_pipelines.wap.staged import open_lake_without_spark

    given, copies = tmp_path / "given", tmp_path / "copies"
    given.mkdir()
    copies.mkdir()
    for name in ("orders-1.csv", "orders-2.csv", "_SUCCESS"):
        (given / name).write_text(name)
    lake = open_lake_without_spark(LakeSettings(_env_file=None, state_dir=tmp_path / "state"))
    for location in (f"file://{given}", f"file://{given}/"):
        found = fetch_objects(lake, location, copies)
        assert [Path(path).read_text() for path in found] == ["orders-1.csv", "orders-2.csv"]
    assert fetch_objects(lake, f"file://{given}/orders-2.csv", copies) == [str(copies / "orders-2.csv")]
    assert fetch_objects(lake, "orders.csv", copies) == ["orders.csv"]
