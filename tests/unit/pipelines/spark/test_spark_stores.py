"""How Spark, Iceberg and deltalake reach the store of the warehouse, and which warehouses are refused."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from lakeshare_pipelines.errors import SparkError
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.spark.session import _add_properties
from lakeshare_pipelines.spark.stores import (
    list_store_jars,
    make_delta_options,
    make_file_io_properties,
    make_hadoop_conf,
    make_java_options,
)
from lakeshare_server.storage import Stores

LOCATION = "s3://lake-1/of sales"
OWN = {"s3_endpoint": "http://store.corp:9000", "s3_region": "eu-west-2"}


def stores(**settings: str) -> Stores:
    return Stores(LakeSettings(_env_file=None, **settings))


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AK")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token")


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("s3://lake/prefix/", "s3://lake/prefix"),
        ("s3a://lake", "s3://lake"),
        ("/srv/lake/../tables", "/srv/tables"),
        ("file:/srv/tables", "/srv/tables"),
    ],
)
def test_a_warehouse_is_kept_in_its_normal_form(given: str, kept: str) -> None:
    assert LakeSettings(_env_file=None, warehouse=given).lake_root == kept


@pytest.mark.parametrize("variable", ["LAKESHARE_WAREHOUSE", "LAKESHARE_WAREHOUSE_DIR"])
def test_a_warehouse_comes_from_the_environment_by_both_names(
    variable: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(variable, str(tmp_path / "tables"))
    assert LakeSettings(_env_file=None).lake_root == str(tmp_path / "tables")


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("s3:///prefix", "pipelines do not use s3:///prefix"),
        ("hdfs://name/lake", "give a folder or s3://bucket/prefix"),
        ("gs://lake/tables", "pipelines do not use gs://lake/tables"),
    ],
)
def test_other_warehouses_are_refused_by_name(given: str, reason: str) -> None:
    with pytest.raises(ValidationError, match="(?s)warehouse.*" + reason):
        LakeSettings(_env_file=None, warehouse=given)


def test_a_folder_needs_nothing(tmp_path: Path) -> None:
    location = str(tmp_path)
    assert list_store_jars([location]) == ()
    for made in (make_hadoop_conf, make_file_io_properties, make_delta_options, make_java_options):
        assert not made(stores(), location)


def test_a_compatible_store_is_addressed_by_path_and_gets_plain_uploads() -> None:
    own = stores(**OWN)
    conf = make_hadoop_conf(own, LOCATION)
    assert conf["fs.s3a.bucket.lake-1.endpoint"] == "http://store.corp:9000"
    assert conf["fs.s3a.bucket.lake-1.path.style.access"] == "true"
    assert conf["fs.s3a.bucket.lake-1.endpoint.region"] == "eu-west-2"
    properties = make_file_io_properties(own, LOCATION)
    assert properties["s3.path-style-access"] == "true"
    assert properties["s3.chunked-encoding-enabled"] == "false"
    assert "-Daws.requestChecksumCalculation=WHEN_REQUIRED" in make_java_options(own, LOCATION)
    options = make_delta_options(own, LOCATION)
    assert options["aws_endpoint_url"] == "http://store.corp:9000"
    assert (options["aws_allow_http"], options["aws_virtual_hosted_style_request"]) == ("true", "false")
    assert (options["aws_session_token"], options["aws_conditional_put"]) == ("token", "etag")


def test_aws_is_addressed_by_host_name() -> None:
    aws = stores(s3_region="eu-west-2")
    assert make_hadoop_conf(aws, LOCATION)["fs.s3a.bucket.lake-1.path.style.access"] == "false"
    assert make_file_io_properties(aws, LOCATION)["s3.chunked-encoding-enabled"] == "true"
    assert make_java_options(aws, LOCATION) == ()
    options = make_delta_options(aws, LOCATION)
    assert options["aws_endpoint_url"] == "https://lake-1.s3.eu-west-2.amazonaws.com"
    assert options["aws_virtual_hosted_style_request"] == "true"


def test_keys_of_s3_reach_no_configuration_of_spark() -> None:
    own = stores(**OWN)
    for made in (make_hadoop_conf(own, LOCATION), make_file_io_properties(own, LOCATION)):
        assert not {"AK", "secret", "token"} & set(made.values())


PROPERTIES = """\
# executors
spark.executor.memory=4g
spark.executor.extraJavaOptions  -XX:+UseSerialGC -Dx=y
spark.sql.session.timeZone: UTC
"""


def test_properties_of_a_file_win_and_lists_are_added_to(tmp_path: Path) -> None:
    path = tmp_path / "spark.properties"
    path.write_text(PROPERTIES)
    ours = {"spark.executor.extraJavaOptions": "-Da=b", "spark.executor.memory": "1g", "spark.app.name": "x"}
    assert _add_properties(ours, path) == {
        "spark.app.name": "x",
        "spark.executor.memory": "4g",
        "spark.executor.extraJavaOptions": "-Da=b -XX:+UseSerialGC -Dx=y",
        "spark.sql.session.timeZone": "UTC",
    }


@pytest.mark.parametrize(
    ("text", "reason"), [("spark.x 1\nx=1\n", r":2: 'x=1' is no Spark property"), (None, "cannot be read")]
)
def test_a_file_of_other_properties_is_refused_by_line(tmp_path: Path, text: str | None, reason: str) -> None:
    path = tmp_path / "spark.properties"
    if text is not None:
        path.write_text(text)
    with pytest.raises(SparkError, match=f"LAKESHARE_SPARK_CONF: .*{reason}"):
        _add_properties({}, path)
