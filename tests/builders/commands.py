"""Running the server's commands as a person types them."""

import io
from dataclasses import dataclass
from pathlib import Path

import pytest

from lakeshare_server.cli import main


@dataclass(frozen=True)
class Ended:
    """How a command ended and what it said."""

    code: object
    output: str
    errors: str


class Runner:
    """Runs commands as a person types them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def ended(self, *arguments: str) -> Ended:
        """Run a command, however it ends."""
        self._monkeypatch.setattr("sys.argv", ["lakeshare", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        said = self._capsys.readouterr()
        return Ended(ended.value.code, said.out, said.err)

    def answering(self, answer: str, *arguments: str) -> Ended:
        """Run a command at a terminal where somebody types an answer."""
        terminal = io.StringIO(f"{answer}\n")
        with self._monkeypatch.context() as patched:
            patched.setattr(terminal, "isatty", lambda: True)
            patched.setattr("sys.stdin", terminal)
            return self.ended(*arguments)

    def __call__(self, *arguments: str) -> str:
        """Run a command that has to succeed, for what it says."""
        ended = self.ended(*arguments)
        assert ended.code == 0, ended.errors
        return ended.output


def a_state_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands work on an empty state in a folder, and in that folder."""
    monkeypatch.setenv("LAKESHARE_STATE_DIR", str(folder / "state"))
    monkeypatch.chdir(folder)
