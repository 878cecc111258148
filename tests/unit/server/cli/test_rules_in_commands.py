"""Commands and files write no rule that partitions do not decide, of followed tables neither, and leave no trace."""

from pathlib import Path

import pytest

from tests.builders.commands import Ended, Runner, a_state_folder
from tests.builders.lake_tables import a_delta_table, an_iceberg_table

DECIDED, UNDECIDED = "day = DATE '2013-01-01'", "flight = 1001"


@pytest.fixture(params=["delta", "iceberg"])
def run(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Runner:
    """A share with a followed table, of which no version has a number yet."""
    a_state_folder(tmp_path, monkeypatch)
    run = Runner(monkeypatch, capsys)
    if request.param == "delta":
        location = str(a_delta_table(tmp_path / "table"))
    else:
        location = an_iceberg_table(tmp_path / "table").table.location()
    run("share", "create", "partners")
    run("table", "follow", location, "--as", "lake.flights", "--share", "partners")
    run("recipient", "add", "acme", "--share", "partners")
    return run


def test_commands_refuse_what_partitions_do_not_decide(run: Runner) -> None:
    before = run("share", "show", "partners")
    grant = ["share", "grant", "partners", "--recipient", "acme", "--where"]
    for arguments in (
        [*grant, UNDECIDED],
        [*grant, "day ="],
        ["share", "change", "partners.lake.flights", "--where", UNDECIDED],
        ["share", "add", "partners", "lake.flights", "--as", "lake.again", "--where", UNDECIDED],
    ):
        refused = run.ended(*arguments)
        assert refused.code == 1
        assert "rule" in refused.errors
        assert "flight" in refused.errors or "Its end is missing" in refused.errors
    assert run("share", "show", "partners") == before
    run(*grant, DECIDED)
    assert f"\t{DECIDED}" in run("share", "show", "partners")


def test_files_refuse_what_partitions_do_not_decide(run: Runner, tmp_path: Path) -> None:
    """The share of the file is made with its rule in one transaction."""
    file = tmp_path / "files.yaml"

    def ended(rule: str, *how: str) -> Ended:
        file.write_text(
            "shares:\n  friends:\n    tables: [lake.flights]\nrecipients: {acme: }\n"
            f'grants:\n- {{share: friends, recipient: acme, rule: "{rule}"}}\n'
        )
        return run.ended("apply", "-f", str(file), *how)

    for how in ("--plan", "--yes"):
        refused = ended(UNDECIDED, how)
        assert (refused.code, "flight" in refused.errors) == (1, True)
        assert f"{file}:6: grants[0]: rule on friends.lake.flights: " in refused.errors
    assert run.ended("share", "show", "friends").code == 1
    assert ended(DECIDED, "--plan").code == 2
    assert ended(DECIDED, "--yes").code == 0
    assert f"\t{DECIDED}" in run("share", "show", "friends")
