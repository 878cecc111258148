"""What MkDocs does not do by itself: the navigation from docs/index.md, pages from outside of docs/, and links to both.

`docs/index.md` is the one list of pages. Its headings are the sections, and the links below a heading their pages.
"""

import base64
import hashlib
import os
import posixpath
import re
from functools import cache
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
SCRIPT = re.compile(r"<script(?![^>]*\bsrc=)[^>]*>(.*?)</script>", re.DOTALL)
POLICY = (
    "default-src 'none'; script-src 'self' {hashes}; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; worker-src 'self'; frame-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'"
)
# Names in code become links to the generated pages, but not inside of links, headings and blocks of code.
NAMED = ("commands", "settings", "metrics", "errors")
KEPT = re.compile(r"(<(a|h\d|pre)\b.*?</\2>)", re.DOTALL)
CODE = re.compile(r"<code>([^<]+)</code>")
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
        if path not in FOLDERS and (ROOT / path).is_dir():
            return label[1:-1]  # the site has no lists of files
        found = find_page(path) or add_asset(path, files, config)
        return f"{label}({os.path.relpath(found, posixpath.dirname(name) or '.')}{anchor})"

    text, kept = "", 0
    for fence in FENCE.finditer(markdown):
        text += LINK.sub(resolve, markdown[kept : fence.start()]) + fence[0]
        kept = fence.end()
    return text + LINK.sub(resolve, markdown[kept:])


@cache
def list_names() -> dict[str, str]:
    """The headings of the generated pages that are commands, settings, metrics and codes, with their places."""
    names = {}
    for page in NAMED:
        for heading in re.findall(
            r"^#{2,4} (.+)$", (ROOT / f"docs/reference/{page}.md").read_text(), re.MULTILINE
        ):
            if "_" in heading or heading.startswith("lakeshare "):
                names.setdefault(heading, f"reference/{page}.html#{heading.lower().replace(' ', '-')}")
    return names


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The page with links from commands, settings, metrics and codes to what the reference has of them."""
    here = posixpath.dirname(page.file.dest_uri)

    def link(code: re.Match[str]) -> str:
        if len(code[1]) > 30 and "/" in code[1] and " " not in code[1]:
            return f"<code>{code[1].replace('/', '/<wbr>')}</code>"  # long paths may break in cells
        words = code[1].split(" ")
        begins = [" ".join(words[:count]) for count in range(min(len(words), 4), 0, -1)]
        begins += re.findall(r"^\w+(?=[{=])", code[1])  # a metric with labels, a setting with a value
        place = next((list_names()[name] for name in begins if name in list_names()), None)
        return code[0] if place is None else f'<a href="{os.path.relpath(place, here or ".")}">{code[0]}</a>'

    # Two groups of the pattern: text, what is kept, its tag, text, …
    parts = KEPT.split(html)
    return "".join(
        CODE.sub(link, part) if place % 3 == 0 else part for place, part in enumerate(parts) if place % 3 != 2
    )


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


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """The page with a policy that lets it request nothing of other hosts, and run no script but its own."""
    if config.site_url:
        return output  # of `mkdocs serve`, which adds a script that reloads the page
    digests = {hashlib.sha256(script.encode()).digest() for script in SCRIPT.findall(output)}
    hashes = " ".join(sorted(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests))
    policy = POLICY.format(hashes=hashes)
    meta = f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    return output.replace("<head>", f"<head>{meta}", 1)
