"""The JSON Schemas in docs/reference/ are those of the models, and accept what the models accept."""

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from pydantic import TypeAdapter, ValidationError

from lakeshare_pipelines.contracts import SetContract, Table
from lakeshare_pipelines.contracts.document import get_document
from lakeshare_pipelines.contracts.loader import list_contract_files
from lakeshare_server.yaml_documents import parse
from tests.builders.published_schemas import REFERENCE, backups_schema, contract_schema
from tests.builders.sets import CONTRACT
from tests.builders.snapshots import as_json, check_snapshot
from tests.unit.pipelines.contracts.test_contract_errors import SOUND
from tests.unit.pipelines.contracts.test_contract_refusals import (
    WRONG_PROPERTIES,
    WRONG_VALUES,
    add_property,
    set_value,
)
from tests.unit.repository.test_frozen_surfaces import DOCUMENTS

DOCS = REFERENCE.parent
SCHEMAS = {"contract": contract_schema, "backups": backups_schema}
PUBLISHED = {
    name: Draft202012Validator(json.loads((REFERENCE / f"{name}.schema.json").read_text()))
    for name in ("contract", "backups", "apply")
}
FRAGMENT = re.compile(r"^( *)```yaml\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
CONTRACT_PAGES = (
    *("reference/contract.md", "reference/serveability.md"),
    *("how-to/maintain-tables.md", "how-to/follow-with-snowflake.md", "how-to/transform-tables.md"),
    "how-to/evolve-a-contract.md",
)


def read(text: str) -> Any:
    """The values of a YAML text as JSON has them: dates and times as texts."""
    return json.loads(json.dumps(parse(text).values, default=str))


def list_faults(name: str, text: str) -> list[str]:
    return [f"{error.json_path}: {error.message}" for error in PUBLISHED[name].iter_errors(read(text))]


def list_fragments(*pages: str) -> Iterator[tuple[str, str]]:
    """The YAML examples of pages in docs/, with the page."""
    for page in pages:
        for indent, text in FRAGMENT.findall((DOCS / page).read_text()):
            yield page, re.sub(f"^{indent}", "", text, flags=re.MULTILINE)


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_published_schemas_are_those_of_the_models(name: str) -> None:
    """LAKESHARE_WRITE_SNAPSHOTS=1 brings them up to date."""
    schema = SCHEMAS[name]()
    Draft202012Validator.check_schema(schema)
    check_snapshot(f"../../docs/reference/{name}.schema.json", as_json(schema, sort_keys=False))


@pytest.mark.parametrize("path", list_contract_files(), ids=lambda path: path.name)
def test_the_shipped_contracts_are_valid(path: Path) -> None:
    assert list_faults("contract", path.read_text()) == []


def test_documents_that_the_commands_accept_are_valid() -> None:
    names = {"contract": "contract", "apply": "apply", "backup": "backups"}
    accepted = [
        (names[command], text) for command, text, refused in DOCUMENTS.values() if not refused and text
    ]
    accepted.append(("contract", CONTRACT.format(name="shop", format="delta", more="")))
    assert {name for name, _ in accepted} == set(PUBLISHED)
    for name, text in accepted:
        assert list_faults(name, text) == [], text


def test_the_examples_of_backups_and_shares_are_valid() -> None:
    pages = [str(page.relative_to(DOCS)) for page in sorted(DOCS.rglob("*.md"))]
    counts = dict.fromkeys(("backups", "apply"), 0)
    for page, text in list_fragments(*pages):
        values = read(text)
        if isinstance(values, dict) and values.keys() & {"backups", "shares", "followed", "grants"}:
            name = "backups" if "backups" in values else "apply"
            counts[name] += 1
            assert list_faults(name, text) == [], (page, text)
    assert min(counts.values()) >= 2


def test_the_examples_of_contracts_are_valid() -> None:
    """Examples are parts of a contract: of the set, of a table, or a list of tables."""
    fragments = list(list_fragments(*CONTRACT_PAGES))
    assert {page for page, _ in fragments} == set(CONTRACT_PAGES)
    for page, text in fragments:
        values = read(text)
        if isinstance(values, list):
            wholes = [SOUND | {"schema": values}]
        else:
            wholes = [SOUND | values, SOUND | {"schema": [SOUND["schema"][0] | values]}]
        assert any(PUBLISHED["contract"].is_valid(whole) for whole in wholes), (page, text)


def is_accepted(contract: dict[str, Any]) -> bool:
    """Whether the models accept the document with the customProperties of the set and of its tables."""
    try:
        TypeAdapter(SetContract).validate_python(contract)
    except ValidationError:
        return False
    elements = ((SetContract, contract), *((Table, table) for table in contract["schema"]))
    return all(
        get_document(kind).known >= {entry["property"] for entry in element.get("customProperties", ())}
        for kind, element in elements
    )


def test_the_schema_refuses_what_the_models_refuse() -> None:
    refused = 0
    for path, value in WRONG_VALUES:
        contract = copy.deepcopy(SOUND)
        set_value(contract, path, value)
        refused += not is_accepted(contract)
        assert PUBLISHED["contract"].is_valid(contract) is is_accepted(contract), (path, value)
    for path, name, value in WRONG_PROPERTIES:
        if path.endswith("properties.1"):
            continue
        contract = copy.deepcopy(SOUND)
        add_property(contract, path, name, value)
        refused += not is_accepted(contract)
        assert PUBLISHED["contract"].is_valid(contract) is is_accepted(contract), (path, name, value)
    assert refused > 80
