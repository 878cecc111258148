"""What MkDocs does not do by itself: the navigation from docs/index.md, pages from outside of docs/, and links to both.

`docs/index.md` is the one list of pages. Its headings are the sections, and the links below a heading their pages.
"""

import os
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
INDEX, DECISIONS = "index.md", "adr/index.md"
# Pages of the repository that are no files of docs/, and where the site has them.
OUTSIDE = {
    "README.md": "overview.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    **{
        f"examples/{folder.name}/README.md": f"examples/{folder.name}.md"
        for folder in sorted((ROOT / "examples").iterdir())
        if (folder / "README.md").is_file()
    },
}
TITLES = {INDEX: "Home", "overview.md": "Overview"}
FOLDERS = {"docs/adr": DECISIONS, "docs": INDEX}
LINK = re.compile(r"(?<!`)(\[(?:[^\[\]]|\[[^\]]*\])*\])\(([^)\s#]+)(#[^)\s]*)?\)")
FENCE = re.compile(r"^( *)(```|~~~).*?^\1\2\s*?$", re.MULTILINE | re.DOTALL)
PICTURE = re.compile(r"!\[[^\]]*\]\(([\w-]+\.svg)\)")
STYLE = re.compile(r"\s*<style>.*?</style>", re.DOTALL)
HEADING = re.compile(r"^(#{2,3}) (.+)$")

# What the search shows first. Long pages have most words of a message, and would win by that.
BOOSTS = {
    "reference/errors.md": 4,
    "reference/": 1.5,
    "adr/": 0.2,
    "changelog.md": 0.05,
    "index.md": 0.5,
    "": 1,
}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.nav = read_navigation((ROOT / "docs" / INDEX).read_text())
    return config


def read_navigation(index: str) -> list[Any]:
    """The navigation that the index describes; a page that is linked under several headings stays under the last."""
    places: dict[str, tuple[str, str]] = {}
    section = part = ""
    for line in index.splitlines():
        if heading := HEADING.match(line):
            section, part = (heading[2], "") if heading[1] == "##" else (section, heading[2])
        for _, target, anchor in LINK.findall(line):
            page = find_page(f"docs/{target}")
            if page and not anchor and page != INDEX:
                places.pop(page, None)
                places[page] = (section, part)
    navigation: dict[str, dict[str, list[Any]]] = {}
    for page, (section, part) in places.items():
        entry = {TITLES[page]: page} if page in TITLES else page
        navigation.setdefault(section, {}).setdefault(part, []).append(entry)
    headings = [heading[2] for line in index.splitlines() if (heading := HEADING.match(line))]
    order = sorted(navigation, key=lambda name: headings.index(name) if name else -1)
    tree: list[Any] = [{TITLES[INDEX]: INDEX}]
    for name in order:
        parts = navigation[name]
        pages: list[Any] = list(parts.pop("", []))
        pages += [{part: parts[part]} for part in sorted(parts, key=headings.index)]
        if DECISIONS in pages:
            pages += list_decisions()
        tree += pages if not name else [{name: pages}]
    return tree


def find_page(path: str) -> str | None:
    """The page of the site that a path of the repository is; None if it is none."""
    path = posixpath.normpath(path)
    if path in FOLDERS:
        return FOLDERS[path]
    if path in OUTSIDE:
        return OUTSIDE[path]
    inside = path.removeprefix("docs/")
    return inside if path.startswith("docs/") and path.endswith(".md") else None


def list_decisions() -> list[str]:
    return sorted(f"adr/{path.name}" for path in (ROOT / "docs/adr").glob("[0-9]*.md"))


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for source, name in OUTSIDE.items():
        files.append(File.generated(config, name, content=(ROOT / source).read_text()))
    files.append(File.generated(config, DECISIONS, content=write_decisions()))
    return files


def write_decisions() -> str:
    """The page that lists the decisions."""
    lines = ["# Decisions", "", "Each page records one decision, its reasons and what follows from it.", ""]
    lines += ["| number | decision |", "|---|---|"]
    for page in list_decisions():
        number, _, title = (ROOT / "docs" / page).read_text().partition("\n")[0][2:].partition(". ")
        lines.append(f"| {number} | [{title}]({page.removeprefix('adr/')}) |")
    return "\n".join(lines) + "\n"


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The page with links to where the site has their targets, and its rank in the search."""
    name = page.file.src_uri
    page.meta["search"] = {"boost": next(BOOSTS[prefix] for prefix in BOOSTS if name.startswith(prefix))}
    if name.startswith("concepts/"):
        markdown = PICTURE.sub(lambda picture: inline_picture(ROOT / "docs/concepts" / picture[1]), markdown)
    sources = {name: source for source, name in OUTSIDE.items()}
    folder = posixpath.dirname(sources.get(name, f"docs/{name}"))

    def resolve(link: re.Match[str]) -> str:
        label, target, anchor = link[1], link[2], link[3] or ""
        if "://" in target or target.startswith("mailto:"):
            return link[0]
        path = posixpath.normpath(posixpath.join(folder, target))
        found = find_page(path) or add_asset(path, files, config)
        return f"{label}({os.path.relpath(found, posixpath.dirname(name) or '.')}{anchor})"

    text, kept = "", 0
    for fence in FENCE.finditer(markdown):
        text += LINK.sub(resolve, markdown[kept : fence.start()]) + fence[0]
        kept = fence.end()
    return text + LINK.sub(resolve, markdown[kept:])


def inline_picture(path: Path) -> str:
    """A picture as a part of the page, so that it has the colours of the page."""
    return f'<figure class="concept">{STYLE.sub("", path.read_text())}</figure>'


def add_asset(path: str, files: Files, config: MkDocsConfig) -> str:
    """A file of the repository that the site hands out as it is; its name on the site."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    name = "files/" + "/".join(part.lstrip(".") for part in path.split("/"))
    if (ROOT / path).is_file() and files.get_file_from_path(name) is None:
        files.append(File.generated(config, name, abs_src_path=str(ROOT / path)))
    return name
