"""Snapshots: texts under `tests/snapshots/` that a surface of the product must equal byte for byte.

`LAKESHARE_WRITE_SNAPSHOTS=1` with the same tests writes them again.
"""

import difflib
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[1] / "snapshots"
WRITE = "LAKESHARE_WRITE_SNAPSHOTS"
MOST_LINES = 200
MODULE = re.compile(r"\blakeshare_(?:server|pipelines)\.\w+")


def check_snapshot(name: str, text: str) -> None:
    """Compare a text with the snapshot of a name; the failure shows the difference."""
    text = text.rstrip("\n") + "\n"
    assert not (found := MODULE.findall(text)), f"modules move, a snapshot must not name them: {found}"
    path = FOLDER / name
    if os.environ.get(WRITE) == "1":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    frozen = path.read_text(encoding="utf-8") if path.is_file() else ""
    if text == frozen:
        return
    difference = list(
        difflib.unified_diff(frozen.splitlines(), text.splitlines(), f"snapshots/{name}", "now", lineterm="")
    )
    shown = "\n".join(difference[:MOST_LINES])
    pytest.fail(
        f"{name} has changed. If that is intended, run the test again with {WRITE}=1 and commit the file.\n{shown}",
        pytrace=False,
    )


def check_section(name: str, title: str, text: str) -> None:
    """Compare a text with the section of a title, `# title` before it, of the snapshot of a name."""
    path = FOLDER / name
    parts = re.split(
        r"^# (.*)\n", path.read_text(encoding="utf-8") if path.is_file() else "", flags=re.MULTILINE
    )
    sections = dict(zip(parts[1::2], parts[2::2], strict=True)) | {title: text.rstrip("\n") + "\n"}
    check_snapshot(name, "".join(f"# {heading}\n{lines}" for heading, lines in sorted(sections.items())))


def as_json(value: Any, *, sort_keys: bool = True) -> str:
    """A value as indented JSON."""
    return json.dumps(value, indent=2, sort_keys=sort_keys, ensure_ascii=False)
