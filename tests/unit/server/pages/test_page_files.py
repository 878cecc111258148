"""What pages are made of is installed with the package, and every part of it is used."""

import re
import subprocess
import sys
import zipfile
from pathlib import Path

PAGES = Path(__file__).parents[4] / "lakeshare_server/pages"
FILES = {
    path.relative_to(PAGES.parents[1]).as_posix()
    for folder in ("templates", "static")
    for path in (PAGES / folder).rglob("*")
    if path.is_file()
}


def test_templates_styles_and_scripts_are_in_the_wheel(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, check=True, cwd=PAGES.parents[1], capture_output=True)
    [wheel] = tmp_path.iterdir()
    with zipfile.ZipFile(wheel) as packed:
        assert set(packed.namelist()) >= FILES


def test_every_file_is_used_and_every_used_one_is_there() -> None:
    texts = [path.read_text() for path in PAGES.rglob("*") if path.suffix in (".html", ".js", ".py")]
    named = {name for text in texts for name in re.findall(r"[\w.]+\.(?:html|css|js|svg)\b", text)}
    assert named == {Path(file).name for file in FILES}
