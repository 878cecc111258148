"""`lakeshare admin key` makes, lists and ends keys; the server tells the first one once, at its first start."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lakeshare_server.catalog.credentials import PREFIX, find_admin_key
from lakeshare_server.cli.admin import print_first_key
from lakeshare_server.cli.console import operator_name
from lakeshare_server.cli.main import commands
from tests.builders.sharing import Provider, a_provider


@pytest.fixture
def provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Provider:
    provider = a_provider(tmp_path)
    monkeypatch.setenv("LAKESHARE_STATE_DIR", str(provider.settings.state_dir))
    return provider


def run(*arguments: str) -> str:
    result = CliRunner().invoke(commands, ["admin", "key", *arguments])
    if result.exception is not None:
        raise result.exception
    return result.output


def test_a_key_is_made_told_once_listed_and_ended(provider: Provider) -> None:
    said = run("add", "ann", "--role", "steward", "--days", "30")
    key = said.split()[-1]
    assert key.startswith(PREFIX)
    with provider.catalog.reading() as session:
        found = find_admin_key(session, key)
    assert found is not None
    assert (found.name, found.role, found.created_by) == ("ann", "steward", operator_name())
    assert "ann\tsteward\tvalid until" in run("list")
    assert key not in run("list")
    assert "no more" in run("revoke", "ann")
    assert "ann\tsteward\trevoked" in run("list")
    with provider.catalog.reading() as session:
        assert find_admin_key(session, key) is None


def test_the_server_makes_its_first_key_once(provider: Provider, capsys: pytest.CaptureFixture[str]) -> None:
    said = _said_by_a_server(provider)
    assert PREFIX not in said
    key = provider.settings.first_key_file.read_text().strip()
    with provider.catalog.reading() as session:
        found = find_admin_key(session, key)
    assert found is not None
    assert (found.role, found.created_by) == ("owner", "lakeshare serve")
    print_first_key(provider.settings)
    assert capsys.readouterr().out == ""


def test_the_first_key_is_shown_on_a_terminal(
    provider: Provider, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    print_first_key(provider.settings)
    [key] = [word for word in capsys.readouterr().out.split() if word.startswith(PREFIX)]
    with provider.catalog.reading() as session:
        assert find_admin_key(session, key) is not None
    assert not provider.settings.first_key_file.exists()


def _said_by_a_server(provider: Provider) -> str:
    """What a server says until it is stopped, right after it is ready."""
    environment = {**os.environ, "LAKESHARE_STATE_DIR": str(provider.settings.state_dir)}
    command = [sys.executable, "-m", "lakeshare_server", "serve", "--port", "0"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        ready = process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        return ready + process.stdout.read()
