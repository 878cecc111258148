"""The Helm chart and the server agree: every setting and value exists, and executors get what deploy/spark shows."""

import json
import os
import re
from pathlib import Path
from typing import Any, get_args

import jsonschema
import pytest
import yaml
from pydantic import SecretStr

from lakeshare_pipelines.settings import LakeSettings
from lakeshare_server.settings import ServerSettings
from tests.builders.snapshots import WRITE

DEPLOY = Path(__file__).parents[3] / "deploy"
CHART = DEPLOY / "helm" / "lakeshare"
SCHEMA_FILE = CHART / "values.schema.json"
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
FIELDS = {
    f"LAKESHARE_{name.upper()}": field
    for settings in (LakeSettings, ServerSettings)
    for name, field in settings.model_fields.items()
}
# A URL with a password.
SECRETS = {"LAKESHARE_DATABASE_URL"} | {
    name for name, field in FIELDS.items() if SecretStr in (field.annotation, *get_args(field.annotation))
}
# The chart or the image sets them.
SET_BY_CHART = {
    f"LAKESHARE_{name}" for name in ("CACHE_DIR", "EVIDENCE_KEY_FILE", "HOST", "PORT", "STATE_DIR")
}


def load_schema() -> dict[str, Any]:
    return json.loads(SCHEMA_FILE.read_text())


def test_the_schema_knows_every_setting_and_secret_of_lakeshare() -> None:
    """LAKESHARE_WRITE_SNAPSHOTS=1 brings it up to date."""
    schema = load_schema()
    expected = {"settings": sorted(FIELDS.keys() - SECRETS - SET_BY_CHART), "secrets": sorted(SECRETS)}
    if os.environ.get(WRITE):
        for kind, names in expected.items():
            schema["$defs"][kind]["propertyNames"]["enum"] = names
        SCHEMA_FILE.write_text(json.dumps(schema, indent=2) + "\n")
    known = {kind: schema["$defs"][kind]["propertyNames"]["enum"] for kind in expected}
    assert known == expected, f"run this test with {WRITE}=1 and commit {SCHEMA_FILE.name}"


def test_settings_named_in_files_of_deploy_exist() -> None:
    files = [path for path in CHART.rglob("*") if path.is_file()] + [*DEPLOY.glob("Containerfile.*")]
    named = {name for path in files for name in re.findall(r"LAKESHARE_[A-Z0-9_]+", path.read_text())}
    assert len(named) > 10
    assert named - FIELDS.keys() == set()


def test_the_values_are_valid_and_misspelt_or_secret_ones_are_refused() -> None:
    schema = load_schema()
    jsonschema.Draft7Validator.check_schema(schema)
    jsonschema.validate(VALUES, schema)
    for wrong in (
        {"servr": {}},
        {"settings": {"LAKESHARE_WAREHOSE": "s3://lake/tables"}},
        {"settings": {"LAKESHARE_SIGNING_KEY": "in the values file"}},
        {"secrets": {"LAKESHARE_SIGNING_KEY": "in the values file"}},
        {"server": {"replicas": 0}},
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)


def list_described(schema: dict[str, Any], part: dict[str, Any], path: str = "") -> set[str]:
    """Paths of the properties that the schema names one by one."""
    part = schema["$defs"][part["$ref"].rsplit("/", 1)[1]] if "$ref" in part else part
    found = set()
    for name, below in part.get("properties", {}).items():
        found |= {f"{path}{name}"} | list_described(schema, below, f"{path}{name}.")
    return found


def list_given(values: Any, path: str = "") -> set[str]:
    if not isinstance(values, dict):
        return set()
    return {path + name for name in values} | {
        below for name, value in values.items() for below in list_given(value, f"{path}{name}.")
    }


def test_schema_and_values_have_the_same_fields() -> None:
    schema = load_schema()
    described, given = list_described(schema, schema), list_given(VALUES)
    # `global` is Helm's; the fields of one resource are the cluster's.
    assert described - given - {"global"} == set()
    assert {path for path in given - described if not re.search(r"\.(requests|limits)\.", path)} == set()


def test_the_properties_of_spark_are_those_of_the_file_that_spark_checks() -> None:
    """tests/integration/test_spark_modes.py checks that file by Spark's own definitions."""
    shown = (DEPLOY / "spark" / "kubernetes.properties").read_text()
    template = (CHART / "templates" / "spark.yaml").read_text()
    properties = re.compile(r"^ *(spark\.[A-Za-z_.]+)", re.MULTILINE)
    assert set(properties.findall(template)) == set(properties.findall(shown))


def test_templates_use_only_values_that_exist() -> None:
    given = list_given(VALUES)
    used = {
        name
        for path in (CHART / "templates").iterdir()
        for name in re.findall(r"\.Values\.([A-Za-z.]+[A-Za-z])", path.read_text())
    }
    assert used - given == set()
    # Objects are used as a whole, too.
    assert {
        path for path in given if not any(path.startswith(name) or name.startswith(path) for name in used)
    } == set()
