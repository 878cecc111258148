"""`lakeshare sql` takes statements, a file or standard input, prints tables, CSV or JSON, and ends with a code."""

import csv
import io
import json
import os
import pwd
from dataclasses import dataclass
from pathlib import Path

import pytest

from lakeshare_server.catalog import open_catalog, states
from lakeshare_server.cli import main
from lakeshare_server.settings import StateSettings
from tests.builders.sql_sessions import a_lake

ME = pwd.getpwuid(os.getuid()).pw_name


@dataclass(frozen=True)
class Ended:
    """How the command ended and what it said."""

    code: object
    output: str
    errors: str


class Command:
    """Runs `lakeshare sql` as a person types it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, *arguments: str, typed: str = "") -> Ended:
        self._monkeypatch.setattr("sys.argv", ["lakeshare", "sql", *arguments])
        self._monkeypatch.setattr("sys.stdin", io.StringIO(typed))
        with pytest.raises(SystemExit) as ended:
            main()
        said = self._capsys.readouterr()
        return Ended(ended.value.code, said.out, said.err)


@pytest.fixture
def sql(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    monkeypatch.setenv("LAKESHARE_STATE_DIR", str(tmp_path / "state"))
    # Who the environment says one is, is nothing to go by.
    monkeypatch.setenv("LOGNAME", "somebody else")
    monkeypatch.setenv("USER", "somebody else")
    monkeypatch.chdir(tmp_path)
    return Command(monkeypatch, capsys)


def test_statements_are_done_in_the_name_of_the_user_of_the_operating_system(sql):
    ended = sql("-c", "CREATE SHARE sales", "-c", "SHOW SHARES; SHOW RECIPIENTS")
    assert (ended.code, ended.errors) == (0, "")
    made, header, rule, row, count, *rest = ended.output.splitlines()
    assert made == "share sales is made"
    assert header.split() == ["name", "created_at", "created_by", "comment"]
    assert set(rule) == {"-", " "}
    assert row.split()[::2] == ["sales", ME]
    assert row.split()[-1] == "NULL"
    assert count == "(1 row)"
    assert rest[-1] == "(0 rows)"


def test_a_file_that_is_refused_says_where_and_what_took_effect(sql, tmp_path):
    script = tmp_path / "changes.sql"
    script.write_text("\ufeffCREATE SHARE a;\n-- not there:\nDROP SHARE nix;\n", encoding="utf-8")
    ended = sql("-f", str(script))
    assert ended.code == 1
    assert ended.output == "share a is made\n"
    assert ended.errors.splitlines() == [
        f"{script}:3:12: Share nix does not exist.",
        "  DROP SHARE nix;",
        "             ^^^",
        "The first statement of 2 took effect; this one and what follows did not.",
    ]


def test_a_file_in_a_single_transaction_takes_effect_wholly_or_not_at_all(sql, tmp_path):
    script = tmp_path / "changes.sql"
    script.write_text("CREATE SHARE a; DROP SHARE nix;")
    ended = sql("-f", str(script), "--single-transaction")
    assert (ended.code, ended.output) == (1, "")
    assert ended.errors.endswith("Nothing of it took effect.\n")
    assert "(0 rows)" in sql("-c", "SHOW SHARES").output
    done = sql("-c", "CREATE SHARE a -- one", "-c", "CREATE SHARE b", "--single-transaction")
    assert (done.code, done.output) == (0, "share a is made\nshare b is made\n")


def test_what_is_no_sql_ends_with_a_code_of_its_own(sql):
    ended = sql(typed="CREATE SHARE a;\nCREATE SHAR b;")
    assert ended.code == 2
    assert ended.errors.startswith("stdin:2:8: SHAR was not expected here")
    assert ended.errors.endswith("Nothing of it was done.\n")
    assert ended.output == ""


def test_csv_and_json_are_for_programs(sql):
    awkward = 'a "quote", a comma\nand a second line'
    sql("-c", f"CREATE SHARE sales COMMENT '{awkward}'")
    [row] = csv.DictReader(io.StringIO(sql("-c", "SHOW SHARES", "-o", "csv").output))
    assert (row["name"], row["comment"]) == ("sales", awkward)
    done = sql("-c", "CREATE SHARE b", "-o", "csv")
    assert (done.output, done.errors) == ("", "share b is made\n")
    ended = sql("-f", "-", "-o", "json", typed="CREATE SHARE c; SHOW SHARES LIKE 'sales'")
    made, shown = map(json.loads, ended.output.splitlines())
    assert made == {"statement": "CREATE SHARE c", "message": "share c is made", "rows": []}
    assert shown["rows"][0]["comment"] == awkward


def test_what_a_comment_has_in_it_does_nothing_to_a_terminal(sql):
    sql("-c", "CREATE SHARE sales COMMENT 'red \x1b[31m\nnext'")
    output = sql("-c", "SHOW SHARES").output
    assert "red \\x1b[31m\\nnext" in output
    assert len(output.splitlines()) == 4


def test_a_file_that_is_no_text_is_refused(sql, tmp_path):
    (tmp_path / "s.sql").write_bytes(b"CREATE SHARE \xff\xfe")
    ended = sql("-f", "s.sql")
    assert ended.code == 1
    assert "UTF-8" in ended.errors
    with open_catalog(StateSettings().catalog_url).reading() as session:
        assert states.list_shares(session) == []


def test_rows_are_selected_as_a_recipient_reads_them(sql, tmp_path):
    lake = a_lake(tmp_path)
    lake.catalog.close()
    grant = "GRANT SELECT ON SHARE sales TO RECIPIENT bob WHERE (region = CURRENT_RECIPIENT().region)"
    made = sql("-c", f"CREATE SHARE sales; ALTER SHARE sales ADD TABLE lake.orders; CREATE RECIPIENT bob PROPERTIES "
                     f"(region = 'US'); ALTER RECIPIENT bob ROTATE TOKEN; {grant}")  # fmt: skip
    assert made.code == 0, made.errors
    shown = sql(
        "-c", "SET RECIPIENT bob; SELECT * FROM sales.lake.orders LIMIT 2", "-o", "json"
    ).output.splitlines()
    assert json.loads(shown[1])["rows"] == [{"region": "US", "day": "2024-01-02", "amount": "2"}] * 2
    refused = sql("-c", "SET RECIPIENT bob; SELECT * FROM sales.lake.parts")
    assert (refused.code, "404" in refused.errors) == (1, True)
    assert "From 1 to 1000" in sql("-c", "SET RECIPIENT bob; SELECT * FROM sales.lake.orders LIMIT 0").errors
