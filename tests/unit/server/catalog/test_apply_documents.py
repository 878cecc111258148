"""A file of `lakeshare apply` that is wrong is refused with file, line, field and remedy, all faults at once."""

import json
import tracemalloc
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakeshare_server.catalog.declared import Document, read_files
from lakeshare_server.catalog.declared.files import FindTables, TableLocation, object_key
from lakeshare_server.errors import DocumentError, LakeshareError, StoreMissing, Unavailable

DOCS = Path(__file__).parents[4] / "docs" / "reference"


def written(folder: Path, text: str, name: str = "shares.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def refusal(path: Path) -> DocumentError:
    with pytest.raises(DocumentError) as refused:
        read_files([path])
    return refused.value


def test_short_forms_stand_for_the_long_ones(tmp_path: Path) -> None:
    long = "shares: {s: {tables: {a.x: {table: a.x}, a.y: {table: lake.y}}}}"
    short = "shares: {s: {tables: {a.x: , a.y: lake.y}}}"
    fields = [
        {key: one.fields for key, one in read_files([written(tmp_path, text)]).items()}
        for text in (long, short)
    ]
    assert fields[0] == fields[1]
    listed = read_files([written(tmp_path, "shares: {s: {tables: [a.x]}, empty: }")])
    assert listed[object_key("table", "s", "a", "x")].fields["table"] == "a.x"
    assert object_key("share", "empty") in listed


def found_in(lake: Mapping[str, Sequence[str] | LakeshareError]) -> FindTables:
    """Tables by location, named as they are there."""

    def find(locations: Sequence[str]) -> list[list[TableLocation] | LakeshareError]:
        found = [lake.get(location, [location]) for location in locations]
        return [
            one
            if isinstance(one, LakeshareError)
            else [TableLocation(at, at.rpartition("/")[2]) for at in one]
            for one in found
        ]

    return find


def test_a_star_stands_for_the_tables_that_are_named_nowhere_else(tmp_path: Path) -> None:
    text = """
followed: {a.*: {location: /d/*, exclude: [z]}, a.y: /other/y, b.v: /d/v}
shares: {s: {tables: {a.*: {history: false}, a.y: {comment: own}, c.*: b.*}}}
"""
    find = found_in({"/d/*": ["/d/v", "/d/x", "/d/y", "/d/z"]})
    wanted = read_files([written(tmp_path, text)], find)
    followed = {one.name: one.fields["location"] for one in wanted.values() if one.key[0] == "followed"}
    assert followed == {"a.x": "/d/x", "a.y": "/other/y", "b.v": "/d/v"}
    tables = {one.name: one for one in wanted.values() if one.key[0] == "table"}
    assert {name: (one.fields["table"], one.fields["history"]) for name, one in tables.items()} == {
        "s.a.x": ("a.x", False),
        "s.a.y": ("a.y", True),
        "s.c.v": ("b.v", True),
    }
    assert str(tables["s.a.x"].origin) == f"{tmp_path / 'shares.yaml'}:3"


def test_every_location_that_is_refused_is_told_at_once(tmp_path: Path) -> None:
    text = "followed:\n  a.x: s3://b/x\n  e.*: /empty/*\n  f.*: /one/*\n  g.y: /g\n  f.y: /h\n  F.*: /two/*"
    text += "\nshares: {s: {tables: {a.*: f.*, A.*: F.*}}}"
    lake = {
        "s3://b/x": Unavailable("S3 does not answer", "Try again."),
        "/empty/*": [],
        "/one/*": StoreMissing("/one"),
        "/two/*": ["/two/y"],
    }
    with pytest.raises(DocumentError) as refused:
        read_files([written(tmp_path, text)], found_in(lake))
    faults = [refused.value, *refused.value.also]
    path = tmp_path / "shares.yaml"
    assert [
        str(DocumentError(one.path, one.field, one.problem, one.hint, line=one.line)) for one in faults
    ] == [
        f'{path}:2: followed["a.x"]: s3://b/x cannot be followed: S3 does not answer. Try again.',
        f'{path}:3: followed["e.*"]: there is no table in /empty/*. Correct the location, or take it out of the file.',
        f'{path}:4: followed["f.*"]: /one/* cannot be followed: /one is not in its store. Correct it, or let the '
        "server's settings give access to it.",
        f'{path}:8: shares.s.tables["A.*"]: s.A.y is in {path}:8 already. Keep one of them.',
    ]


def test_all_faults_of_all_files_are_told_at_once(tmp_path: Path) -> None:
    written(tmp_path, "shares: {s: {a: 1, b: 2}}", "one.yaml")
    written(tmp_path, "shares: {s: {}}\nc: 3", "two.yml")
    written(tmp_path, "not: [yaml", "three.yaml")
    written(tmp_path, "not: ours", "notes.txt")
    (tmp_path / ".github").mkdir()
    written(tmp_path, "not: ours", ".github/workflow.yaml")
    fault = refusal(tmp_path)
    assert [(one.path.name, one.field) for one in (fault, *fault.also)] == [
        ("one.yaml", "shares.s.a"),
        ("one.yaml", "shares.s.b"),
        ("three.yaml", "the file"),
        ("two.yml", "c"),
    ]


def test_an_object_stands_in_one_file_only(tmp_path: Path) -> None:
    first = written(tmp_path, "recipients: {Bob: {}}", "a.yaml")
    written(tmp_path, "\nrecipients: {bob: {}}", "b.yaml")
    assert f"bob is in {first}:1 already" in str(refusal(tmp_path))
    assert list(read_files([first, tmp_path / "a.yaml"])) == [object_key("recipient", "bob")]


@pytest.mark.parametrize("made", ["nothing", "folder", "bytes"])
def test_what_cannot_be_read_is_refused(tmp_path: Path, made: str) -> None:
    path = tmp_path / made
    if made == "folder":
        path.mkdir()
    elif made == "bytes":
        path.write_bytes(b"shares: \xff")
    fault = refusal(path)
    assert fault.path == path


def test_a_few_aliases_do_not_unfold_to_any_number_of_values(tmp_path: Path) -> None:
    names = "abcdefgh"
    bomb = ["a: &a [x, x, x, x, x, x, x, x, x, x]"]
    bomb += [f"{name}: &{name} [{', '.join(['*' + before] * 10)}]" for before, name in pairwise(names)]
    path = written(tmp_path, "\n".join(bomb))
    tracemalloc.start()
    fault = refusal(path)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert "it unfolds to" in str(fault)
    assert peak_bytes < 20_000_000


@pytest.mark.parametrize("opening", ["[", "{a: ", "- "])
def test_a_file_that_is_nested_without_end_is_refused(tmp_path: Path, opening: str) -> None:
    # libyaml's composer overflows the stack of the process.
    assert "nested deeper" in str(refusal(written(tmp_path, opening * 200_000)))


LINES = st.lists(
    st.sampled_from(
        [
            "shares:",
            "  s:",
            "    tables:",
            "      a.x: {}",
            "  - a",
            "grants:",
            "&a",
            "*a",
            "<<: *a",
            "? ",
            "\t",
            "\x85",
        ]
    )
    | st.text(max_size=12),
    max_size=8,
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(lines=LINES)
def test_any_text_is_read_or_refused_never_anything_else(tmp_path: Path, lines: list[str]) -> None:
    path = tmp_path / "any.yaml"
    path.write_bytes("\n".join(lines).encode("utf-8", "surrogatepass"))
    with suppress(DocumentError):
        read_files([path])


def test_the_schema_for_editors_is_that_of_the_model() -> None:
    assert json.loads((DOCS / "apply.schema.json").read_text()) == Document.model_json_schema(), (
        "run: lakeshare export --json-schema -o docs/reference/apply.schema.json"
    )


def test_the_reference_names_every_field() -> None:
    text = (DOCS / "apply.md").read_text()
    schema = Document.model_json_schema()
    parts = [schema, *schema["$defs"].values()]
    missing = {name for part in parts for name in part.get("properties", {}) if f"`{name}`" not in text}
    assert missing == set()
