"""The JSON Schemas of contracts and backups, for editors; those of docs/reference/ are written from here.

Fields come from the models that read the files, what they mean from the tables of docs/reference/contract.md.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from lakeshare_pipelines.backup.config import Backup
from lakeshare_pipelines.contracts import Column, SetContract, Table
from lakeshare_pipelines.contracts.document import PROPERTIES, CustomProperty, get_document
from lakeshare_pipelines.contracts.rules import CLASS, EXPECTATIONS

REFERENCE = Path(__file__).parents[2] / "docs/reference"
DIALECT = "https://json-schema.org/draft/2020-12/schema"
HEADINGS = {
    kind.__name__: name for kind, name in ((SetContract, "The set"), (Table, "A table"), (Column, "A column"))
}
ROW = re.compile(r"^\| (`[^|]+?`) \| (.+) \|$", re.MULTILINE)


def contract_schema() -> dict[str, Any]:
    """The schema of a contract, with the names and values of customProperties at each level."""
    kinds: list[type[BaseModel]] = [get_document(SetContract), CustomProperty]
    _, schema = models_json_schema([(kind, "validation") for kind in kinds])
    parts = schema["$defs"]
    for name, part in parts.items():
        fields = part["properties"]
        texts = dict(_read_descriptions(HEADINGS[name])) if name in HEADINGS else {}
        for field in fields.keys() & texts.keys():
            fields[field]["description"] = texts[field]
        own = {
            field.partition(".")[2]: fields.pop(field)
            for field in list(fields)
            if field.startswith(f"{PROPERTIES}.")
        }
        if own:
            fields[PROPERTIES]["items"] = _describe_properties(own, texts)
    parts["Implementation"]["properties"]["type"] |= {
        "anyOf": [{"enum": sorted(EXPECTATIONS)}, {"pattern": f"^{CLASS.pattern}$"}]
    }
    root = parts.pop(SetContract.__name__)
    return {"$schema": DIALECT, "title": "Contract of lakeshare", **_untitled({**root, "$defs": parts})}


def backups_schema() -> dict[str, Any]:
    """The schema of the file of LAKESHARE_BACKUPS_FILE; the name of a backup is its key there."""
    backup = Backup.model_json_schema()
    parts, name = backup.pop("$defs"), backup["properties"].pop("name")
    backup["required"].remove("name")
    backups = {
        "type": "object",
        "propertyNames": {"pattern": name["pattern"]},
        "additionalProperties": {"$ref": "#/$defs/Backup"},
    }
    return {
        "$schema": DIALECT,
        "title": "Backups of lakeshare",
        "type": "object",
        "required": ["backups"],
        "properties": {"backups": backups},
        "$defs": _untitled({**parts, "Backup": backup}),
    }


def _describe_properties(values: Mapping[str, Any], texts: Mapping[str, str]) -> dict[str, Any]:
    """The schema of one of customProperties: those of lakeshare by name, those of other tools by their dot."""
    ours = [
        {
            **({"description": texts[name]} if name in texts else {}),
            "properties": {"property": {"const": name}, "value": value},
        }
        for name, value in values.items()
    ]
    other = {"description": "A property of another tool", "properties": {"property": {"pattern": r"\."}}}
    return {"allOf": [{"$ref": "#/$defs/CustomProperty"}], "oneOf": [*ours, other]}


def _read_descriptions(heading: str) -> Iterator[tuple[str, str]]:
    """The text of the reference about each field under a heading, without its default and its links."""
    page = (REFERENCE / "contract.md").read_text()
    section = page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    for names, rest in ROW.findall(section):
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", rest.rpartition("| ")[2])
        for name in re.findall(r"`(\w+)`", names):
            yield name, text


def _untitled(schema: Any) -> Any:
    """A schema without the titles that pydantic makes of names, which editors would show."""
    if isinstance(schema, list):
        return [_untitled(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: _untitled(part)
        for name, part in schema.items()
        if not (name == "title" and isinstance(part, str))
    }
