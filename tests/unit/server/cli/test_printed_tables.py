"""Rows of commands: columns on a terminal, tabs for programs."""

import re
import sys

import pytest

from lakeshare_server.cli.console import print_table

ROWS = [("acme", None, 3), ("[bold]of[/bold] a very long name that is not cut off", "x", 12)]


def test_programs_get_a_line_for_each_row(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(ROWS, ["NAME", "NOTE", "ROWS"])
    assert capsys.readouterr().out == "NAME\tNOTE\tROWS\nacme\t\t3\n" + "\t".join(map(str, ROWS[1])) + "\n"


def test_a_terminal_gets_columns_with_every_character(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm")
    print_table(ROWS, ["NAME", "NOTE", "ROWS"])
    lines = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()
    assert max(map(len, lines)) == 40
    assert next(line.split() for line in lines if "name" in line) == ["name", "note", "rows"]
    shown = "".join("".join(line.split()) for line in lines)
    assert "[bold]of[/bold]" in shown
    assert next(line.split() for line in lines if "acme" in line) == ["acme", "3"]
