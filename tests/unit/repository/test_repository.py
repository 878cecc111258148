"""The repository is what its documents say: settings, commands, folders and decisions are all named in them."""

import re
from pathlib import Path

from typer.testing import CliRunner

from lakeshare_pipelines.cli.main import app
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_server.settings import ServerSettings

ROOT = Path(__file__).parents[3]
README = (ROOT / "README.md").read_text()
INDEX = (ROOT / "docs" / "index.md").read_text()
SETTINGS = {
    f"LAKESHARE_{name.upper()}": (field.default, field.description or "")
    for settings in (LakeSettings, ServerSettings)
    for name, field in settings.model_fields.items()
}
SOURCES = [
    path
    for top in ("lakeshare_pipelines", "lakeshare_server", "tests", "bench")
    for path in (ROOT / top).rglob("*.py")
]


def test_every_setting_is_in_the_example_with_its_description_and_nothing_else_is():
    example = (ROOT / ".env.example").read_text()
    shown = dict(re.findall(r"^# (.+)\n#(LAKESHARE_[A-Z_0-9]+)=", example, re.MULTILINE))
    assert {name: text for text, name in shown.items()} == {
        name: text for name, (_, text) in SETTINGS.items()
    }


def test_settings_named_in_the_readme_and_the_index_exist():
    assert set(re.findall(r"LAKESHARE_[A-Z0-9_]+", README + INDEX)) - set(SETTINGS) == set()


def test_folders_in_the_readme_are_the_folders_of_the_packages():
    for package in ("lakeshare_pipelines", "lakeshare_server"):
        folders = {path.parent.name for path in (ROOT / package).glob("*/__init__.py")}
        missing = {
            name for name in folders if f"`{name}/`" not in README and f"`{package}/{name}/`" not in README
        }
        assert not missing, f"README's picture lacks {sorted(missing)} of {package}"


def test_links_of_the_readme_and_the_index_lead_somewhere():
    for folder, page in ((ROOT, README), (ROOT / "docs", INDEX)):
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page):
            assert (folder / target).exists(), target


def test_every_page_of_the_documentation_is_in_the_index():
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").glob("[hr]*/*.md")}
    assert {page for page in pages if f"]({page})" not in INDEX} == set()


def test_commands_named_in_the_readme_and_the_index_exist(subtests):
    for command in sorted(set(re.findall(r"`lakeshare ([a-z-]+(?: [a-z]+)?)", README + INDEX))):
        with subtests.test(command=command):
            words = command.split()
            ended = CliRunner().invoke(app, [words[0], "--help"])
            assert ended.exit_code == 0, ended.output
            if "COMMAND [ARGS]" in ended.stdout and "RECIPIENT COMMAND" not in ended.stdout:
                assert words[1] in ended.stdout


def test_make_targets_named_in_the_readme_and_the_index_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"make ([a-z-]+)", README + INDEX)):
        assert re.search(rf"^{target}:.*## ", makefile, re.MULTILINE), target


def test_no_module_is_longer_than_the_conventions_allow():
    assert {
        str(path.relative_to(ROOT)): n for path in SOURCES if (n := len(path.read_text().splitlines())) > 900
    } == {}


def test_no_two_test_files_have_one_name():
    # pytest imports them by their names alone: the second of two would not be run.
    names = [path.name for path in SOURCES if path.name.startswith("test_")]
    assert sorted({name for name in names if names.count(name) > 1}) == []


def test_no_file_is_named_for_nothing():
    nothing = {"utils.py", "util.py", "helpers.py", "common.py", "manager.py", "misc.py"}
    assert [path for path in SOURCES if path.name in nothing] == []


def test_the_lock_has_hashes_and_no_address():
    lock = (ROOT / "requirements.lock").read_text()
    assert "--hash=sha256:" in lock
    assert "://" not in lock
