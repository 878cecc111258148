"""`lakeshare explain` tells which files a recipient's predicate leaves out and what decided, or what to correct."""

import json
from pathlib import Path
from typing import Any

import pytest

from lakeshare_server.access.authentication import write_profile
from lakeshare_server.catalog import DeclaredShare, SharedTable, apply_shares
from lakeshare_server.cli import main
from lakeshare_server.tables.predicates import EVERYTHING
from lakeshare_server.tables.pruning import explain, explained_files
from tests.builders.lake_tables import a_delta_table
from tests.builders.pruning.stated import a_file, an_index, compared, json_of, sql
from tests.builders.sharing import Provider, a_provider

TABLES = {"flights": "flights", "others": "secret"}
FIELDS = {"day": "date", "distance": "long", "delay": "double", "carrier": "string", "gate": "binary"}


def a_file_of(day: str | None, **stated: Any) -> dict[str, Any]:
    return {**a_file(**stated), "partitionValues": {"day": day}}


@pytest.fixture
def files() -> list[dict[str, Any]]:
    return [
        a_file_of("2013-01-01", distance=(410, 900), carrier=("AA", "B6")),
        a_file_of("2013-01-02", distance=(100, 390), carrier=("UA", "UA")),
        a_file_of("2013-01-02", distance=(100, 900), nulls={"distance": 4, "carrier": 10}),
        a_file_of(None, rows=7, deleted=2, distance=(200, 200), carrier=("UA", "UA")),
        {"size": 1, "modificationTime": 1, "dataChange": True, "partitionValues": {"day": "2013-01-02"}},
    ]


@pytest.mark.parametrize(
    ("text", "reasons"),
    [
        ("distance < 400", ["min(distance)=410 >= 400", "every row matches", "may hold rows that match"]),
        ("distance > 400", ["every row matches", "max(distance)=390 <= 400", "may hold rows that match"]),
        ("NOT (distance > 400)", ["min(distance)=410 > 400", "every row matches"]),
        ("distance = 395", ["min(distance)=410, max(distance)=900 without 395 in between"]),
        ("day = '2013-01-02'", ["day=2013-01-01", "every row matches", "every row matches", "day=unknown"]),
        ("day IS NULL", ["day=2013-01-01"]),
        ("carrier IS NOT NULL", ["every row matches", "every row matches", "every carrier is null"]),
        ("carrier IS NULL", ["no carrier is null", "no carrier is null", "every row matches"]),
        (
            "carrier = 'AA'",
            ["may hold rows that match", "min(carrier)=UA, max(carrier)=UA without 'AA' in between"],
        ),
        ("carrier <> 'UA'", ["every row matches", "every carrier is 'UA'", "every carrier is null"]),
        (
            "distance < 50 OR day = '2013-01-02'",
            ["min(distance)=410 >= 50; day=2013-01-01", "every row matches"],
        ),
        ("day = '2013-01-02' AND distance > 400", ["day=2013-01-01", "max(distance)=390 <= 400"]),
        (
            "NOT (day = '2013-01-01' AND distance > 50)",
            ["day=2013-01-01; min(distance)=410 > 50", "every row matches"],
        ),
        (
            "(day = '2013-01-02' AND distance > 400) OR carrier = 'x'",
            ["day=2013-01-01; min(carrier)=AA, max(carrier)=B6 without 'x' in between"],
        ),
        ("NOT (distance > 400 OR carrier = 'x')", ["min(distance)=410 > 400", "every row matches"]),
        ("distance > 50 AND FALSE", ["the condition is constant"] * 5),
    ],
)
def test_each_file_is_told_what_decided(
    tmp_path: Path, files: list[dict[str, Any]], text: str, reasons: list[str]
) -> None:
    index = an_index(tmp_path, FIELDS, files, ["day"])
    told = [file.reason for file in explained_files(index, sql(text))]
    assert told[: len(reasons)] == reasons
    # Of the last file nothing is known but its day.
    assert told[-1] == ("every row matches" if text == "day = '2013-01-02'" else told[-1])


def test_each_part_is_told_what_it_drops_by_itself(tmp_path: Path, files: list[dict[str, Any]]) -> None:
    index = an_index(tmp_path, FIELDS, files, ["day"])
    found = explain(index, sql("day = '2013-01-02' AND (distance > 400 AND carrier < 'B')"))
    assert [(part.text, part.drops) for part in found.parts] == [
        ("day = '2013-01-02'", 2),
        ("distance > 400", 2),
        ("carrier < 'B'", 3),
    ]
    assert (found.files, found.kept, found.dropped, found.rows, found.uncounted) == (5, 1, 4, 0, 1)


def test_parts_are_written_as_they_were_understood(tmp_path: Path, files: list[dict[str, Any]]) -> None:
    index = an_index(tmp_path, FIELDS | {"late": "boolean", "at": "timestamp"}, files, ["day"])
    texts = [
        "(NOT (distance = 1) OR carrier IS NOT NULL)",
        "(late = TRUE OR (distance > 1 AND carrier IS NULL))",
        "(at < '2013-01-02 03:04:05' OR day = '2013-01-01')",
    ]
    written = " AND ".join(texts).replace("'2013-01-02 03", "TIMESTAMP '2013-01-02 03")
    assert [part.text for part in explain(index, sql(written)).parts] == texts


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rlike(carrier, 'A')", "not understood"),
        ("nowhere = 5", "nowhere is no column of the table"),
        ("distance = 'x'", "distance is of type int64: that is not compared with 'x'"),
        ("CAST(distance AS INT) = 5", "distance is of type int64: that is not compared as int with 5"),
        ("delay > 5", "there are no statistics of delay"),
        ("gate IS NULL", "the nulls of gate were not counted"),
        ("day = '2013-01-01' OR nowhere = 5", "nowhere is no column"),
        ("NOT (nowhere = 5)", "nowhere is no column"),
        ("distance < 10000", None),
    ],
)
def test_a_part_that_drops_nothing_says_why(
    tmp_path: Path, files: list[dict[str, Any]], text: str, said: str | None
) -> None:
    [part] = explain(an_index(tmp_path, FIELDS, files, ["day"]), sql(text)).parts
    assert part.drops == 0
    assert part.remark is None if said is None else said in str(part.remark)


def test_a_column_that_may_hold_nan_says_so(tmp_path: Path) -> None:
    [part] = explain(an_index(tmp_path, {"x": "double"}, [a_file(x=(0, 1))]), sql("x > 5")).parts
    assert "NaN" in str(part.remark)


def test_a_limit_lets_files_through_until_enough_rows_are_sure(
    tmp_path: Path, files: list[dict[str, Any]]
) -> None:
    index = an_index(tmp_path, FIELDS, files, ["day"])
    # Ten rows are enough; five of seven are left by the deletion vector of the fourth file.
    found = explain(index, EVERYTHING, limit=25)
    assert (found.kept, found.beyond_limit, found.rows) == (3, 2, 30)
    assert [file.rows for file in explained_files(index, EVERYTHING)] == [10, 10, 10, 5, None]
    told = list(explained_files(index, sql("distance < 400"), limit=10))
    assert [file.is_kept for file in told] == [False, True, False, False, False]
    assert told[2].reason == "the files before it hold enough rows for the limit"


def test_json_predicates_are_told_as_they_were_understood(
    tmp_path: Path, files: list[dict[str, Any]]
) -> None:
    index = an_index(tmp_path, FIELDS, files, ["day"])
    node = {"op": "and", "children": [compared("distance", "<", "400", "long"), {"op": "soundsLike"}]}
    assert [part.text for part in explain(index, json_of(node)).parts] == [
        "distance < 400",
        "soundsLike(soundsLike)",
    ]


@pytest.fixture
def provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Provider:
    provider = a_provider(tmp_path)
    monkeypatch.setenv("LAKESHARE_STATE_DIR", str(provider.settings.state_dir))
    monkeypatch.chdir(tmp_path)
    provider.publish_delta("lake.flights", a_delta_table(tmp_path / "table"))
    provider.publish_delta("lake.secret", a_delta_table(tmp_path / "secret"))
    shared = {share: SharedTable("lake", table, f"lake.{table}") for share, table in TABLES.items()}
    apply_shares(provider.catalog, [DeclaredShare(share, (table,)) for share, table in shared.items()])
    write_profile(
        tmp_path / "bob.share", "http://127.0.0.1:8765/delta-sharing", provider.recipient("bob"), None
    )
    return provider


def said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[object, list[str], str]:
    monkeypatch.setattr("sys.argv", ["lakeshare", "explain", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    output = capsys.readouterr()
    return ended.value.code, output.out.splitlines(), output.err


def test_the_command_tells_what_the_recipient_would_get(
    provider: Provider, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    where = "day = '2013-01-02' AND flight > 0"
    code, lines, _ = said(monkeypatch, capsys, "bob.share#flights.lake.flights", "--where", where, "--files")
    assert code == 0
    assert lines[0] == (
        "flights.lake.flights, version 0, as bob reads it: 1 of 3 files are kept, at most 4 rows; 2 are left out"
    )
    assert lines[1:5] == [
        "DROPS\tPART\tREMARK",
        "2\tday = '2013-01-02'\t",
        "0\tflight > 0\t",
        "FILE\tROWS\tPATH\tWHY",
    ]
    assert [line.split("\t")[0] for line in lines[5:]] == ["dropped", "kept", "dropped"]
    assert lines[5].endswith("\tday=2013-01-01")
    assert lines[6].split("\t")[2].startswith("day=2013-01-02/")


def test_the_command_takes_json_limits_and_versions(
    provider: Provider, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    node = json.dumps(compared("day", "=", "2013-01-02", "date"))
    code, lines, _ = said(
        monkeypatch, capsys, "bob.share#FLIGHTS.lake.flights", "--json-predicate", node, "--limit", "3"
    )
    assert (code, lines[-1]) == (0, "0\tLIMIT 3\tafter what the parts above leave")
    code, _, error = said(monkeypatch, capsys, "bob.share#flights.lake.flights", "--version", "9")
    assert code == 1
    assert "has no such version" in error


@pytest.mark.parametrize(
    ("table", "arguments", "sentence"),
    [
        ("bob.share", [], "Give PROFILE#share.schema.table"),
        ("bob.share#flights.flights", [], "Give PROFILE#share.schema.table"),
        ("eve.share#flights.lake.flights", [], "PROFILE: 'eve.share' cannot be used"),
        ("broken.share#flights.lake.flights", [], "Give the path of a profile file"),
        ("second.share#flights.lake.flights", [], "Give a profile with shareCredentialsVersion 1"),
        ("empty.share#flights.lake.flights", [], "Give a profile with a bearerToken"),
        ("stranger.share#flights.lake.flights", [], "unknown, expired or revoked in this server's catalog"),
        ("bob.share#flights.lake.nothing", [], "does not exist"),
        ("bob.share#others.lake.secret", [], "does not exist"),
        ("bob.share#flights.lake.flights", ["--where", "day like"], "Nothing of it is understood"),
        ("bob.share#flights.lake.flights", ["--json-predicate", "{}"], "Nothing of it is understood"),
    ],
)
def test_what_cannot_be_explained_is_named_with_its_remedy(
    provider: Provider,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    table: str,
    arguments: list[str],
    sentence: str,
) -> None:
    Path("broken.share").write_text("{")
    Path("second.share").write_text('{"shareCredentialsVersion": 2, "bearerToken": "x"}')
    Path("empty.share").write_text('{"shareCredentialsVersion": 1, "bearerToken": ""}')
    Path("stranger.share").write_text('{"shareCredentialsVersion": 1, "bearerToken": "x"}')
    code, lines, error = said(monkeypatch, capsys, table, *arguments)
    assert (code, lines) == (1, [])
    assert sentence in error
