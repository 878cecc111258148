"""`lakeshare conformance run` tries what it is told to, says what came of it, and ends with the code for it."""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lakeshare_conformance.client import BadOption, Client, Unreachable, read_profile
from lakeshare_conformance.command import make_progress_watch
from lakeshare_conformance.report import NOT_APPLICABLE, list_cases, run_cases, select_cases
from lakeshare_conformance.targets import MAX_TABLES, discover_targets
from lakeshare_server.cli import main
from tests.fakes.defects.tools import METADATA, QUERY, TABLE, VERSION, Defect, answer, asked, at, header
from tests.fakes.model_requests import Reply, Request
from tests.fakes.model_server import ModelServer, a_model_server

Command = Callable[..., tuple[object, str, str]]


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with a_model_server() as server:
        yield server


@pytest.fixture
def profile(server: ModelServer, tmp_path: Path) -> Path:
    server.defect = None
    path = tmp_path / "bob.share"
    path.write_text(json.dumps(server.profile.fields))
    return path


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    def ended(*arguments: object) -> tuple[object, str, str]:
        monkeypatch.setattr("sys.argv", ["lakeshare", "conformance", "run", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        said = capsys.readouterr()
        return end.value.code, said.out, said.err

    return ended


def test_the_list_names_every_case_with_its_level_and_sections(command: Command) -> None:
    code, said, _ = command("--list")
    assert code == 0
    for case in list_cases():
        assert f"  {case.name}  [{case.level}; {case.section}]\n      {case.promise}\n" in said


def test_one_table_can_be_tried_with_some_cases(command: Command, profile: Path, tmp_path: Path) -> None:
    arguments = [
        "--share",
        "ALPHA",
        "--table",
        "other.Closed",
        "--only",
        "credentials",
        "--only",
        "versions.*header",
    ]
    code, said, _ = command(profile, *arguments, "--json", tmp_path / "r.json", "--junit", tmp_path / "r.xml")
    assert (code, said.splitlines()[0].split(": ")[1]) == (0, "alpha.other.closed")
    report = json.loads((tmp_path / "r.json").read_text())
    assert [case["name"] for case in report["cases"]] == [
        "versions.the-version-is-a-header",
        "credentials.credentials-are-given-as-documented-or-refused",
        "credentials.credentials-for-other-places-are-refused",
    ]
    assert (tmp_path / "r.xml").read_bytes().startswith(b"<?xml")


@pytest.mark.parametrize(
    ("only", "defect", "code"),
    [
        ("versions.the-version-is-a-header", at(VERSION, header("Delta-Table-Version", None)), 1),
        ("versions.a-date-alone-is-400", at(VERSION, answer(200), when=asked("startingTimestamp")), 0),
    ],
)
def test_only_a_broken_must_ends_with_code_1(
    server: ModelServer, command: Command, profile: Path, only: str, defect: Defect, code: int
) -> None:
    server.defect = defect
    ended, said, _ = command(profile, "--only", only)
    assert (ended, "  FAILED " in said) == (code, True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nothing.share"], "nothing.share"),
        (["{profile}", "--share", "gamma"], "--share: 'gamma' cannot be used"),
        (["{profile}", "--table", "main.none"], "--table: 'main.none' cannot be used"),
        (["{profile}", "--only", "none"], "--list names them all"),
    ],
)
def test_what_cannot_be_tried_is_refused_in_a_sentence(
    command: Command, profile: Path, arguments: list[str], said: str
) -> None:
    code, _, errors = command(*(one.replace("{profile}", str(profile)) for one in arguments))
    assert code == 1
    assert said in errors
    assert "Traceback" not in errors


def test_a_run_without_a_profile_is_a_usage_error(command: Command) -> None:
    code, _, errors = command()
    assert (code, "PROFILE" in errors) == (2, True)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"endpoint": "http://x"}', '{"endpoint": "", "bearerToken": "x"}']
)
def test_a_file_that_is_no_profile_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.share").write_text(text)
    with pytest.raises(BadOption, match="PROFILE"):
        read_profile(tmp_path / "x.share")


def test_a_server_that_is_not_there_is_told_at_once(server: ModelServer) -> None:
    gone = replace(server.profile, endpoint="http://127.0.0.1:9/delta-sharing")
    with Client(gone) as client, pytest.raises(Unreachable, match="Check the profile's endpoint"):
        discover_targets(client, gone)


def test_no_more_tables_are_tried_than_a_run_takes(server: ModelServer, profile: Path) -> None:
    [tiny] = [table for table in server.model.tables if table.name == "tiny"]
    many = tuple(replace(tiny, name=f"t{number}") for number in range(MAX_TABLES + 3))
    tables, server.model.tables = server.model.tables, many
    try:
        with Client(server.profile) as client:
            ground = discover_targets(client, server.profile)
    finally:
        server.model.tables = tables
    assert (len(ground.tables), ground.left_out) == (MAX_TABLES, 3)


@pytest.mark.parametrize(
    ("groups", "defect"),
    [
        (("time-travel", "windows"), at(QUERY, answer(404), when=asked("version", "startingVersion"))),
        (("changes", "change-bounds"), at(f"{TABLE}/changes", answer(404))),
        (
            ("delta-format", "deletion-vectors"),
            at(METADATA, header("delta-sharing-capabilities", "responseformat=parquet")),
        ),
    ],
    ids=["no history", "no changes", "no delta format"],
)
def test_what_a_server_does_not_offer_is_not_applicable(
    server: ModelServer, groups: tuple[str, ...], defect: Defect
) -> None:
    server.defect = defect
    with Client(server.profile) as client:
        outcomes = run_cases(select_cases(groups), discover_targets(client, server.profile))
    lacking = [outcome for outcome in outcomes if outcome.verdict == NOT_APPLICABLE]
    assert len(lacking) >= len(outcomes) - 2
    assert all(outcome.reason and outcome.tried == 0 for outcome in lacking)


def test_a_server_that_wants_fewer_requests_gets_its_pause(server: ModelServer) -> None:
    refusals = iter([answer(429), answer(429)])

    def busy(_: Request, reply: Reply) -> None:
        next(refusals, lambda _: None)(reply)
        reply.headers["Retry-After"] = "0"

    server.defect = busy
    with Client(server.profile) as client:
        assert client.ask("GET", "/shares").status == 200
    assert next(refusals, None) is None


def test_a_run_that_takes_a_while_tells_where_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    [case] = select_cases(["versions.the-version-is-a-header"])
    make_progress_watch(time.monotonic())(1, 9, case)
    assert capsys.readouterr().err == ""
    watch = make_progress_watch(time.monotonic() - 60)
    watch(2, 9, case)
    watch(3, 9, case)
    assert capsys.readouterr().err == "2/9 versions.the-version-is-a-header\n"
