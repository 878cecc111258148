"""`make` prepares .venv with the Python that is named, else the distribution's, else one of the PATH."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "deploy" / "bootstrap.sh"
# The functions alone: the script goes on to install.
FIND = """source <(sed -n '/^say()/p; /^find_python()/,/^}/p' "$1"); find_python"""
USABLE = "import ctypes, sqlite3, ssl, sys; sys.exit(sys.version_info < (3, 11))"
DISTRIBUTION = "/usr/bin/python3"


def find_python(path: str, named: str | None = None) -> "subprocess.CompletedProcess[str]":
    environment = {name: text for name, text in os.environ.items() if name != "LAKESHARE_PYTHON"}
    environment |= {"PATH": path} | ({} if named is None else {"LAKESHARE_PYTHON": named})
    command = ["/bin/bash", "-c", FIND, "bash", str(SCRIPT)]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def a_python(folder: Path, name: str, content: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{content}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def on_path(tmp_path: Path) -> str:
    """A PATH with a python3 of a version manager before the tools of the machine."""
    a_python(tmp_path / "managed", "python3", f'exec {sys.executable} "$@"')
    return f"{tmp_path / 'managed'}:{os.environ['PATH']}"


def test_the_python_of_the_distribution_comes_before_those_of_the_path(on_path: str) -> None:
    is_usable = Path(DISTRIBUTION).exists() and not subprocess.run([DISTRIBUTION, "-c", USABLE]).returncode
    expected = DISTRIBUTION if is_usable else sys.executable
    found = find_python(on_path)
    assert found.returncode == 0, found.stderr
    assert Path(found.stdout.strip()).samefile(expected)


def test_the_python_that_is_named_is_taken_or_refused(tmp_path: Path, on_path: str) -> None:
    named = a_python(tmp_path / "own", "python", f'exec {sys.executable} "$@"')
    assert Path(find_python(on_path, str(named)).stdout.strip()).samefile(sys.executable)
    old = a_python(tmp_path / "old", "python", "exit 1")
    for unusable in (str(old), str(tmp_path / "none")):
        refused = find_python(on_path, unusable)
        assert (refused.returncode, refused.stdout) == (1, "")
        assert f"LAKESHARE_PYTHON={unusable} is no Python 3.11 or newer" in refused.stderr
