"""Holds what the code base has won: its size and its words may shrink, not grow. The limits are in ratchet.toml."""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
WORDS = re.compile(r"\b(told|tells?|whoever|somebody|nobody|owe[sd]?|eyes|doors?)\b", re.IGNORECASE)
QUOTED = re.compile(r"`[^`\n]*`")
LONG = 900


def measure() -> dict[str, int]:
    """Count what ratchet.toml limits, over the three packages; banned words also over README and docs/."""
    modules = sorted(path for top in ROOT.glob("lakeshare_*") for path in top.rglob("*.py"))
    lines = {path: path.read_text().splitlines() for path in modules}
    folders = {
        folder: [one for one in folder.glob("*.py") if one.name != "__init__.py"]
        for folder in {path.parent for path in modules}
    }
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    # What a page quotes in backticks is not its own prose.
    prose = [QUOTED.sub("", page.read_text()).splitlines() for page in pages]
    return {
        "package_files": len(modules),
        "package_lines": sum(map(len, lines.values())),
        "files_over_900_lines": sum(len(text) > LONG for text in lines.values()),
        "modules_in_a_folder": max(map(len, folders.values())),
        "lines_with_banned_words": sum(
            bool(WORDS.search(line)) for text in (*lines.values(), *prose) for line in text
        ),
    }


def main() -> int:
    """Print each count beside its limit; 1 if one is over it."""
    limits = tomllib.loads(Path(__file__).with_name("ratchet.toml").read_text())
    counts = measure()
    for name, count in counts.items():
        verdict = (
            "over" if count > limits[name] else "lower the limit to it" if count < limits[name] else "ok"
        )
        print(f"{name}: {count} of {limits[name]}, {verdict}")
    return int(any(count > limits[name] for name, count in counts.items()))


sys.exit(main())
