"""`lakeshare apply`, `diff` and `export` say what they do, end with a code for programs, and ask only who is there."""

import json
from pathlib import Path

import pytest

from lakeshare_server.cli.console import operator_name
from tests.builders.commands import Runner, a_state_folder

TEXT = """shares:
  partners:
    comment: Orders
    tables: [sales.orders]
recipients: {acme: }
grants: [{share: partners, recipient: acme}]
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Runner:
    a_state_folder(tmp_path, monkeypatch)
    (tmp_path / "shares.yaml").write_text(TEXT)
    return Runner(monkeypatch, capsys)


def test_a_plan_is_shown_and_ends_with_2_for_changes_and_0_for_none(run: Runner) -> None:
    ended = run.ended("apply", "-f", "shares.yaml", "--plan")
    assert ended.code == 2
    lines = ended.output.splitlines()
    assert lines[:4] == [
        "  + recipient acme",
        "  + share partners",
        '      + comment: "Orders"',
        "  + table partners.sales.orders",
    ]
    assert lines[-1].endswith(": 4 to add, 0 to change, 0 to remove.")
    assert run("export").count("\n") == 3, "a plan writes nothing"
    said = run("apply", "-f", "shares.yaml", "--yes")
    assert "Applied: 4 added, 0 changed, 0 removed." in said
    assert "acme has no token yet: lakeshare recipient rotate acme" in said
    for arguments in (["apply", "-f", "shares.yaml", "--plan"], ["diff", "-f", "shares.yaml"]):
        assert run(*arguments) == "No changes: the catalog holds what the files say.\n"


def test_files_with_a_name_prune_and_compare_their_own_objects(run: Runner, tmp_path: Path) -> None:
    run("apply", "-f", "shares.yaml", "--configuration", "sales", "--yes")
    (tmp_path / "stock.yaml").write_text("groups: {retail: {members: [acme]}}")
    run("apply", "-f", "stock.yaml", "--configuration", "stock", "--prune", "--yes")
    assert run("diff", "-f", "shares.yaml", "--configuration", "sales").startswith("No changes")
    refused = run.ended("apply", "-f", "shares.yaml", "--configuration", "stock", "--plan")
    assert (refused.code, "give --take-from sales" in refused.errors) == (1, True)
    moved = ("apply", "-f", "shares.yaml", "--configuration", "stock", "--take-from", "sales", "--yes")
    assert "Applied: 0 added, 4 changed, 0 removed." in run(*moved)
    assert run.ended("apply", "-f", "shares.yaml", "--configuration", "no name", "--plan").code == 1


def test_nothing_is_done_without_being_asked_for(run: Runner) -> None:
    ended = run.ended("apply", "-f", "shares.yaml")
    assert (ended.code, "give --yes, or --expect" in ended.errors) == (1, True)
    assert run.ended("diff", "-f", "shares.yaml").code == 2
    assert run.answering("no", "apply", "-f", "shares.yaml").code == 1
    assert run.ended("diff", "-f", "shares.yaml").code == 2
    assert "Applied: 4 added" in run.answering("yes", "apply", "-f", "shares.yaml").output


def test_only_the_expected_plan_is_done(run: Runner, tmp_path: Path) -> None:
    digest = json.loads(run.ended("apply", "-f", "shares.yaml", "--plan", "--json").output)["digest"]
    (tmp_path / "more.yaml").write_text("shares: {more: }")
    ended = run.ended("apply", "-f", ".", "--expect", digest)
    assert (ended.code, f"not plan {digest} any more" in ended.errors) == (1, True)
    assert "Applied: 4 added" in run("apply", "-f", "shares.yaml", "--expect", digest)


def test_drift_is_shown_with_who_left_it_and_taken_back(run: Runner) -> None:
    run("apply", "-f", "shares.yaml", "--yes")
    run("share", "set", "partners", "--comment", "changed")
    run("share", "add", "partners", "hr.salaries")
    ended = run.ended("diff", "-f", "shares.yaml")
    assert ended.code == 2
    first, second, third, _ = ended.output.splitlines()
    assert first.startswith(f"  ~ share partners  # as {operator_name()} left it 20")
    assert second == '      ~ comment: "changed" → "Orders"'
    assert f"table partners.hr.salaries: was made by hand by {operator_name()} in" in third
    run("apply", "-f", "shares.yaml", "--yes")
    assert "comment\tOrders" in run("share", "show", "partners")


def test_programs_get_json(run: Runner) -> None:
    told = json.loads(run("apply", "-f", "shares.yaml", "--yes", "--json"))
    assert told["summary"] == {"create": 4, "update": 0, "delete": 0}
    assert [(change["kind"], change["file"], change["line"]) for change in told["changes"]][1] == (
        "share",
        "shares.yaml",
        2,
    )


def test_an_export_is_a_file_for_apply(run: Runner, tmp_path: Path) -> None:
    run("apply", "-f", "shares.yaml", "--yes")
    run("recipient", "rotate", "acme")
    run("export", "-o", "out/all.yaml", "--revisions")
    text = (tmp_path / "out" / "all.yaml").read_text()
    assert json.loads((tmp_path / "acme.share").read_text())["bearerToken"] not in text
    assert "revision: " in text
    assert run("apply", "-f", "out", "--plan").startswith("No changes")
    assert json.loads(run("export", "--json-schema"))["title"] == "Document"


def test_a_wrong_file_is_a_sentence_with_its_line(run: Runner, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("shares:\n  s:\n    comments: x\n")
    for command in ("apply", "diff"):
        ended = run.ended(command, "-f", "bad.yaml")
        assert (ended.code, ended.output) == (1, "")
        assert ended.errors.startswith("lakeshare: bad.yaml:3: shares.s.comments: unknown field 'comments'.")
