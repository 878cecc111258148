"""How Spark, Iceberg and deltalake reach the store of the warehouse, and which warehouses are refused."""

import json
import re
from pathlib import Path

import pytest
from pydantic import ValidationError

from lakeshare_pipelines.contracts import SetContract
from lakeshare_pipelines.errors import SparkError, WarehouseError
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.spark.jars import GCS_JARS, S3_JARS
from lakeshare_pipelines.spark.session import (
    DRIVER_CONF,
    _add_properties,
    format_properties,
    list_session_jars,
)
from lakeshare_pipelines.spark.stores import (
    list_store_jars,
    list_warehouses,
    make_catalog_io,
    make_delta_options,
    make_file_io_properties,
    make_hadoop_conf,
    make_java_options,
    make_pyiceberg_properties,
    make_warehouse_error,
    require_reachable,
)
from lakeshare_server.errors import Unavailable
from lakeshare_server.storage import Stores
from tests.builders.google_account import account_file
from tests.builders.sets import a_contract

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
        ("gcs://lake/prefix/", "gs://lake/prefix"),
        (
            "abfs://lake@store.dfs.core.windows.net/of sales/",
            "abfss://lake@store.dfs.core.windows.net/of sales",
        ),
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
        ("hdfs://name/lake", "give a folder, s3://bucket/prefix, gs://bucket/prefix or abfss://"),
        ("gs://", "pipelines do not use gs://"),
        ("abfss://lake/tables", "abfss://container@account.dfs.core.windows.net/prefix"),
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


GCS = "gs://lake-1/of sales"


@pytest.fixture
def account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(account_file(tmp_path, "http://127.0.0.1:9/")))


@pytest.mark.usefixtures("account")
def test_google_is_reached_by_the_default_credentials_of_each_library() -> None:
    google = stores()
    assert list_store_jars([GCS]) == ("iceberg-gcp-bundle", "gcs-connector")
    conf = make_hadoop_conf(google, GCS)
    assert conf["fs.gs.storage.root.url"] == "https://storage.googleapis.com/"
    assert conf["fs.gs.auth.type"] == "APPLICATION_DEFAULT"
    assert make_file_io_properties(google, GCS) == {
        "io-impl": "org.apache.iceberg.gcp.gcs.GCSFileIO",
        "gcs.service.host": "https://storage.googleapis.com",
    }
    assert make_pyiceberg_properties(google, GCS) == {"gcs.service.host": "https://storage.googleapis.com"}
    options = make_delta_options(google, GCS)
    assert options["google_base_url"] == "https://storage.googleapis.com"
    assert "google_service_account_key" not in options


def test_an_endpoint_without_tls_gets_no_credentials_of_googles() -> None:
    plain = stores(gcs_endpoint="http://gcs.corp:4443/")
    conf = make_hadoop_conf(plain, GCS)
    assert (conf["fs.gs.storage.root.url"], conf["fs.gs.auth.type"]) == (
        "http://gcs.corp:4443/",
        "UNAUTHENTICATED",
    )
    assert make_file_io_properties(plain, GCS)["gcs.no-auth"] == "true"
    assert json.loads(make_delta_options(plain, GCS)["google_service_account_key"])["disable_oauth"]


def test_delta_refuses_credentials_of_google_that_deltalake_cannot_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = {"type": "authorized_user", "client_id": "c", "client_secret": "s", "refresh_token": "r"}
    service = "https://iamcredentials.googleapis.com/v1/projects/-/serviceAccounts/a@b:generateAccessToken"
    impersonated = {
        "type": "impersonated_service_account",
        "service_account_impersonation_url": service,
        "source_credentials": user,
    }
    file = tmp_path / "impersonated.json"
    file.write_text(json.dumps(impersonated))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
    google = stores()
    with pytest.raises(
        WarehouseError, match=r"gs://lake-1/of sales: .*google.auth.impersonated_credentials.*key file"
    ):
        make_delta_options(google, GCS)
    assert make_hadoop_conf(google, GCS)["fs.gs.auth.type"] == "APPLICATION_DEFAULT"


AZURE = "abfss://lake@sales.dfs.core.windows.net/of sales"
HOST = "sales.dfs.core.windows.net"
KEY = "c2VjcmV0"


def test_azure_is_reached_by_the_key_of_the_account() -> None:
    azure = stores(azure_account="sales", azure_account_key=KEY)
    assert list_store_jars([AZURE]) == ("iceberg-azure-bundle", "hadoop-azure")
    conf = make_hadoop_conf(azure, AZURE)
    assert conf[f"fs.azure.account.auth.type.{HOST}"] == "SharedKey"
    assert conf[f"fs.azure.account.key.{HOST}"] == KEY
    assert "fs.azure.abfs.endpoint" not in conf
    assert make_file_io_properties(azure, AZURE) == {
        "io-impl": "org.apache.iceberg.azure.adlsv2.ADLSFileIO",
        "adls.auth.shared-key.account.name": "sales",
        "adls.auth.shared-key.account.key": KEY,
    }
    options = make_delta_options(azure, AZURE)
    assert (options["azure_endpoint"], options["azure_storage_account_key"]) == (
        "https://sales.blob.core.windows.net",
        KEY,
    )
    assert make_pyiceberg_properties(azure, AZURE)["adls.account-key"] == KEY
    redacted = re.compile(DRIVER_CONF["spark.redaction.regex"])
    made = {**conf, **make_file_io_properties(azure, AZURE)}
    assert all(redacted.search(name) for name, value in made.items() if value == KEY)


def test_azure_is_reached_by_a_signature() -> None:
    azure = stores(azure_account="sales", azure_sas_token="?sv=1&sig=x")
    conf = make_hadoop_conf(azure, AZURE)
    assert conf[f"fs.azure.account.auth.type.{HOST}"] == "SAS"
    assert conf[f"fs.azure.sas.fixed.token.{HOST}"] == "sv=1&sig=x"
    assert make_file_io_properties(azure, AZURE)[f"adls.sas-token.{HOST}"] == "sv=1&sig=x"
    assert make_delta_options(azure, AZURE)["azure_storage_sas_token"] == "sv=1&sig=x"


@pytest.mark.parametrize(
    ("environment", "provider", "option"),
    [
        ({}, "MsiTokenProvider", None),
        (
            {"AZURE_CLIENT_SECRET": "s"},
            "ClientCredsTokenProvider",
            ("client.endpoint", "https://login.microsoftonline.com/t/oauth2/token"),
        ),
        (
            {"AZURE_FEDERATED_TOKEN_FILE": "/var/token"},
            "WorkloadIdentityTokenProvider",
            ("token.file", "/var/token"),
        ),
    ],
)
def test_azure_is_reached_by_the_identity_of_the_environment(
    environment: dict[str, str],
    provider: str,
    option: tuple[str, str] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {"AZURE_CLIENT_ID": "c", "AZURE_TENANT_ID": "t", **environment}.items():
        monkeypatch.setenv(name, value)
    conf = make_hadoop_conf(stores(), AZURE)
    assert conf[f"fs.azure.account.auth.type.{HOST}"] == "OAuth"
    assert conf[f"fs.azure.account.oauth.provider.type.{HOST}"].endswith(f".oauth2.{provider}")
    assert conf[f"fs.azure.account.oauth2.client.id.{HOST}"] == "c"
    if option:
        assert conf[f"fs.azure.account.oauth2.{option[0]}.{HOST}"] == option[1]
    assert make_file_io_properties(stores(), AZURE) == {
        "io-impl": "org.apache.iceberg.azure.adlsv2.ADLSFileIO"
    }


def test_azure_may_be_at_another_host_with_the_account_in_the_path() -> None:
    azure = stores(
        azure_account="sales", azure_account_key=KEY, azure_endpoint="http://azure.corp:10000/sales"
    )
    conf = make_hadoop_conf(azure, AZURE)
    assert conf["fs.azure.abfs.endpoint"] == "azure.corp:10000"
    assert conf["fs.azure.fns.account.service.type"] == "BLOB"
    assert (
        make_file_io_properties(azure, AZURE)["adls.connection-string.sales"]
        == "http://azure.corp:10000/sales"
    )
    assert make_delta_options(azure, AZURE)["allow_http"] == "true"


def a_contract_in_google(folder: Path) -> SetContract:
    server = {"type: local, path: warehouse": f"type: gcs, location: '{GCS}'"}
    return a_contract(folder, "sales", "iceberg", **server)


def test_contracts_name_further_stores_for_spark(tmp_path: Path) -> None:
    a_contract_in_google(tmp_path / "contracts")
    given = {"warehouse": "s3://lake-1", "contracts_dir": str(tmp_path / "contracts"), **OWN}
    settings = LakeSettings(_env_file=None, **given)
    assert list_warehouses(settings) == ("s3://lake-1", GCS)
    assert {*S3_JARS, *GCS_JARS} < set(list_session_jars(settings))
    properties = make_catalog_io(Stores(settings), list_warehouses(settings))
    assert properties["io-impl"] == "org.apache.iceberg.io.ResolvingFileIO"
    assert {"s3.endpoint", "gcs.service.host"} < set(properties)


def test_a_contract_in_a_store_without_credentials_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "missing.json"))
    with pytest.raises(Unavailable, match=r"no credentials for Google Cloud Storage .*GOOGLE_APPLICATION_"):
        require_reachable(stores(), a_contract_in_google(tmp_path))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("SdkClientException: Failed to load credentials from metadata service.", "no valid credentials"),
        ("Unable to load credentials from any of the providers in the chain", "no valid credentials"),
        (
            "S3Exception: The provided token has expired. (Status Code: 400) ExpiredToken",
            "no valid credentials",
        ),
        ("Your default credentials were not found. Application Default Credentials", "no valid credentials"),
        ("StorageException: The specified bucket does not exist.", "its bucket does not exist"),
        ("AbfsRestOperationException: 403, AuthorizationPermissionMismatch", "refuses the request"),
        ("SocketTimeoutException: Read timed out", "does not answer"),
    ],
)
def test_failures_of_stores_in_spark_are_errors_about_the_warehouse(text: str, reason: str) -> None:
    assert reason in str(make_warehouse_error(LOCATION, text))


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


@pytest.mark.parametrize(
    "name",
    [
        "spark.hadoop.fs.azure.account.key.lake.dfs.core.windows.net",
        "spark.hadoop.fs.azure.sas.fixed.token.lake.dfs.core.windows.net",
        "spark.hadoop.fs.s3a.secret.key",
        "spark.sql.catalog.lake.adls.connection-string.lake",
    ],
)
def test_secrets_of_stores_are_not_printed(name: str) -> None:
    lines = format_properties({name: "hush", "spark.app.name": "lakeshare"}).splitlines()
    assert lines == ["spark.app.name lakeshare", f"# {name}: not printed"]
