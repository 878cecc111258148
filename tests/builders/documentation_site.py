"""The documentation site: built, and its search as the script of Material for MkDocs 9.8 runs it in the browser."""

import json
import os
import re
import subprocess
import sys
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from lunr.builder import Builder
from lunr.index import Index
from lunr.trimmer import trimmer

from lakeshare_server.file_lock import hold_lock
from tests.builders.shared_folder import folder_of_all_workers

TAG = re.compile(r"<[^>]+>")
BUILD_S = 300.0


def build_site(folder: Path) -> Path:
    """Builds the site into a folder; any warning is an error."""
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    assert "WARNING" not in built.stderr
    return folder


def site_of_all_workers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, which the first worker of a test run that needs it builds. Never change it."""
    folder = folder_of_all_workers(tmp_path_factory)
    with hold_lock(folder / "site.lock", wait_s=BUILD_S):
        if not (folder / "site").exists():
            build_site(folder / "site.new").rename(folder / "site")
    return folder / "site"


class SiteSearch:
    """The prebuilt sections of a built site, searched with lunr."""

    def __init__(self, site: Path) -> None:
        content = json.loads((site / "search/search_index.json").read_text())
        config = content["config"]
        assert config["pipeline"] == ["trimmer"], "the index below is made with it alone"
        self._separator = re.compile(config["separator"])
        self.sections: dict[str, dict[str, Any]] = {
            section["location"]: section for section in content["docs"]
        }
        self._index = self._build(config["fields"])

    def _build(self, fields: dict[str, dict[str, float]]) -> Index:
        builder = Builder()
        builder.b(0)
        builder.pipeline.add(trimmer)
        builder.search_pipeline.add(trimmer)
        builder.ref("location")
        for name, options in fields.items():
            builder.field(name, boost=options["boost"])
        for section in self.sections.values():
            words = {name: self._split(section.get(name, "")) for name in fields}
            builder.add({"location": section["location"], **words}, {"boost": section.get("boost", 1)})
        return builder.build()

    def _split(self, text: str) -> str:
        """Words of a text with spaces between them, for lunr's own tokenizer."""
        return " ".join(self._separator.split(unescape(TAG.sub(" ", text)))).strip()

    def find(self, text: str, *, is_quoted: bool = False) -> list[str]:
        """Locations of sections for what a user types, best first.

        Each word is the begin of others and optional; in quotes, all words are whole and required.
        """
        words = re.sub(r"[~^:*+\\]", " ", self._split(text)).lower().split()
        found = []
        for result in self._index.search(" ".join(f"+{word}" if is_quoted else f"{word}*" for word in words)):
            matched = list(result["match_data"].metadata)
            covered = sum(any(one.startswith(word) for one in matched) for word in set(words)) / len(
                set(words)
            )
            share = covered + ("#" not in result["ref"])
            found.append((result["score"] * (1 + share**2), result["ref"]))
        return [location for _, location in sorted(found, key=lambda one: -one[0])]
