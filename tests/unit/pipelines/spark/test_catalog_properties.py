"""One set of pyiceberg's properties configures a catalog for pyiceberg and Spark; unusable ones are refused by name."""

from pathlib import Path

import pytest

from lakeshare_pipelines.cli.doctor import check_iceberg_catalog, check_jars, check_java, check_nessie
from lakeshare_pipelines.errors import IcebergCatalogError
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.spark.catalogs import NamedCatalog
from lakeshare_pipelines.spark.session import list_session_jars
from lakeshare_server.storage import Stores
from tests.builders.answering_store import answering_store, said

PREFIX = "spark.sql.catalog.prod"


def configured(monkeypatch: pytest.MonkeyPatch, folder: Path, **properties: str) -> LakeSettings:
    monkeypatch.setenv("PYICEBERG_HOME", str(folder))
    for name, value in properties.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__PROD__{name}", value)
    return LakeSettings(_env_file=None, state_dir=folder, cache_dir=folder / "cache", iceberg_catalog="prod")


def spark_conf(settings: LakeSettings) -> dict[str, str]:
    conf = NamedCatalog.load(settings).make_spark_conf(settings, Stores(settings))
    assert conf.pop(PREFIX) == "org.apache.iceberg.spark.SparkCatalog"
    assert conf.pop(f"{PREFIX}.cache-enabled") == "false"
    return {name.removeprefix(f"{PREFIX}."): value for name, value in conf.items()}


POSTGRES = {"URI": "postgresql+psycopg://me:s%40cret@db.example:5433/ice?sslmode=require"}
REST = {
    "URI": "https://catalog.example/api",
    "WAREHOUSE": "s3://tables",
    "REST__SIGV4_ENABLED": "true",
    "CLIENT__ACCESS_KEY_ID": "AK",
    "CLIENT__SECRET_ACCESS_KEY": "cret",
    "HEADER__X": "1",
}


def test_nessie_is_the_default():
    assert NamedCatalog.load(LakeSettings(_env_file=None)) is None


def test_a_sql_catalog_has_the_same_address_in_jdbc(tmp_path, monkeypatch):
    settings = configured(monkeypatch, tmp_path, **POSTGRES)
    assert spark_conf(settings) == {
        "type": "jdbc",
        "uri": "jdbc:postgresql://db.example:5433/ice?sslmode=require",
        "jdbc.user": "me",
        "jdbc.password": "s@cret",
        "jdbc.schema-version": "V1",
        "warehouse": f"file://{tmp_path}/warehouse",
    }
    assert list_session_jars(settings)[-1] == "postgresql"
    catalog = NamedCatalog.load(settings)
    assert "cret" not in f"{catalog} {catalog.address}"


def test_a_rest_catalog_keeps_its_properties_and_gets_the_stores_settings(tmp_path, monkeypatch):
    settings = configured(monkeypatch, tmp_path, **REST).model_copy(
        update={"s3_endpoint": "http://s3.example", "s3_region": "eu-west-1"}
    )
    conf = spark_conf(settings)
    assert conf["io-impl"] == "org.apache.iceberg.aws.s3.S3FileIO"
    expected = {
        "type": "rest",
        "uri": "https://catalog.example/api",
        "warehouse": "s3://tables",
        "rest.sigv4-enabled": "true",
        "rest.access-key-id": "AK",
        "s3.access-key-id": "AK",
        "rest.secret-access-key": "cret",
        "s3.secret-access-key": "cret",
        "s3.endpoint": "http://s3.example",
        "client.region": "eu-west-1",
        "header.x": "1",
    }
    assert {name: conf.get(name) for name in expected} == expected
    assert {"iceberg-aws-bundle", "hadoop-aws"} < set(list_session_jars(settings))


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({}, r"pyiceberg's configuration has no catalog of this name; it has: none\. Name it in"),
        ({"TYPE": "dynamodb"}, "property type is dynamodb. Give one of rest, sql, glue, hive"),
        ({"WAREHOUSE": "s3://x"}, "property type is not given"),
        ({"TYPE": "rest"}, "property uri is not given, and a catalog of type rest needs it"),
        (
            {"TYPE": "sql", "URI": "mysql://me:cret@db/x"},
            "property uri begins with mysql. Spark and pyiceberg",
        ),
        (
            {"TYPE": "sql", "URI": "postgresql+psycopg://me:cret@db:54x2/x"},
            "property uri is no URL of a database",
        ),
        ({"TYPE": "sql", "URI": "postgresql:cret"}, "property uri is no URL of a database"),
        ({"URI": "sqlite:///catalog.db"}, "property uri names no absolute path. Write sqlite:////folder/"),
        ({**REST, "PY_IO_IMPL": "x"}, "property py-io-impl has no counterpart in Spark"),
    ],
)
def test_properties_that_cannot_be_used_are_refused_by_name(tmp_path, monkeypatch, properties, message):
    settings = configured(monkeypatch, tmp_path, **properties)
    with pytest.raises(IcebergCatalogError, match=message) as refusal:
        NamedCatalog.load(settings)
    assert "cret" not in str(refusal.value)
    [finding] = check_iceberg_catalog(settings)
    assert not finding.ok
    assert finding.remedy


def test_the_name_of_deltas_catalog_is_refused(tmp_path):
    settings = LakeSettings(_env_file=None, state_dir=tmp_path, iceberg_catalog="spark_catalog")
    with pytest.raises(IcebergCatalogError, match="Spark has Delta's tables under this name"):
        NamedCatalog.load(settings)


def test_a_value_that_spark_cannot_have_is_refused(tmp_path, monkeypatch):
    (tmp_path / ".pyiceberg.yaml").write_text(
        "catalog:\n  prod:\n    uri: https://catalog.example\n    auth:\n      type: noop\n"
    )
    with pytest.raises(IcebergCatalogError, match="property auth is not a text"):
        NamedCatalog.load(configured(monkeypatch, tmp_path))


def test_the_doctor_names_the_catalog_and_what_is_weaker_with_it(tmp_path, monkeypatch):
    settings = configured(monkeypatch, tmp_path, URI=f"sqlite:///{tmp_path}/catalog.db")
    findings = [
        finding
        for check in (check_iceberg_catalog, check_nessie, check_java, check_jars)
        for finding in check(settings)
    ]
    assert [(finding.name, finding.ok) for finding in findings[:2]] == [
        ("Iceberg catalog", True),
        ("publication in the catalog", True),
    ]
    assert "prod (sql), sqlite:////" in findings[0].detail
    assert "one table at a time" in findings[1].detail
    assert not any("Nessie" in finding.name for finding in findings)
    assert "sqlite-jdbc" in findings[-1].detail
    assert list(tmp_path.iterdir()) == []


def test_the_doctor_reports_a_database_that_does_not_respond(tmp_path, monkeypatch):
    settings = configured(monkeypatch, tmp_path, URI="postgresql+psycopg://me:cret@127.0.0.1:9/ice")
    found, _ = check_iceberg_catalog(settings)
    assert (found.ok, found.remedy) == (False, "Start it, or correct its uri")
    assert "prod (sql), postgresql+psycopg://me:***@127.0.0.1:9/ice" in found.detail
    assert "cret" not in found.detail


def test_the_doctor_reports_a_rest_catalog_without_namespaces(tmp_path, monkeypatch):
    config = said("200 OK", '{"defaults": {}, "overrides": {}}', "Content-Type: application/json")
    with answering_store(
        lambda request: config if "/config" in request else said("404 Not Found")
    ) as catalog:
        [found] = check_iceberg_catalog(configured(monkeypatch, tmp_path, URI=catalog.endpoint))
    assert (found.ok, found.remedy) == (False, "Correct its uri, warehouse or prefix")
    assert found.detail == "prod (rest), no namespaces (HTTP 404)"
