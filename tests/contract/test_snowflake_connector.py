"""The real connector sends Snowflake our statements, in order, and tells of what Snowflake answers; see the builder.

The answers are a recording written by hand (tests/builders/snowflake.py): no Snowflake was asked.
"""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lakeshare_pipelines.cli.main import main
from lakeshare_pipelines.errors import SnowflakeError
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.share.snowflake import TableName, snowflake_session, sync_table
from lakeshare_server.catalog import Catalog, Ledger
from tests.builders.database_schema import open_migrated
from tests.builders.publications import a_publication
from tests.builders.s3_objects import s3_with
from tests.builders.snowflake import Exchange, Recording, answered, login_refused, refused, replayed

ORDERS = ("sales.orders", TableName("orders", "sales", "lake"))
DAILY = ("sales.daily", TableName("daily", "sales", "lake"))
PASSWORD = "pass-word-of-the-loader"
NAME = '"LAKE"."SALES"."ORDERS"'


def metadata(number: int) -> str:
    return f"s3://lake/tables/sales/orders/metadata/{number}.metadata.json"


def created(number: int, query_id: str = "q-create", **different: Any) -> Exchange:
    statement = (
        f"CREATE ICEBERG TABLE IF NOT EXISTS {NAME}\n  EXTERNAL_VOLUME = 'LAKE'\n  CATALOG = 'LAKE_FILES'\n"
        f"  METADATA_FILE_PATH = 'sales/orders/metadata/{number}.metadata.json'"
    )
    said = "Table ORDERS successfully created."
    return Exchange(
        statement, different.pop("answer", None) or answered("status", said, query_id), **different
    )


def refreshed(number: int, query_id: str = "q-refresh", **different: Any) -> Exchange:
    statement = f"ALTER ICEBERG TABLE {NAME} REFRESH 'sales/orders/metadata/{number}.metadata.json'"
    said = "Statement executed successfully."
    return Exchange(
        statement, different.pop("answer", None) or answered("status", said, query_id), **different
    )


def shown(location: str, query_id: str = "q-shown") -> Exchange:
    # The name is bound, and the connector writes it as a text.
    statement = f"SELECT SYSTEM$GET_ICEBERG_TABLE_INFORMATION('{NAME}')"
    told = json.dumps({"metadataLocation": location, "status": "success"})
    return Exchange(statement, answered("SYSTEM$GET_ICEBERG_TABLE_INFORMATION", told, query_id))


DELTA_STATEMENTS = (
    'CREATE ICEBERG TABLE IF NOT EXISTS "LAKE"."SALES"."DAILY"\n  EXTERNAL_VOLUME = \'LAKE\'\n'
    "  CATALOG = 'LAKE_LOGS'\n  BASE_LOCATION = 'sales/daily'\n  AUTO_REFRESH = FALSE",
    'ALTER ICEBERG TABLE "LAKE"."SALES"."DAILY" REFRESH',
)


@pytest.fixture
def objects() -> dict[str, bytes]:
    """What is in the store: two metadata files and a Delta log of two versions."""
    found = {
        f"lake/tables/sales/orders/metadata/{number}.metadata.json": json.dumps(
            {"current-snapshot-id": 10 * number}
        ).encode()
        for number in (1, 2)
    }
    return found | {f"lake/tables/sales/daily/_delta_log/{n:020}.json": b"{}\n" for n in range(2)}


@pytest.fixture
def make(
    objects: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., LakeSettings]]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AK")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with s3_with(objects) as store:

        def settings(recording: Recording | None, **different: Any) -> LakeSettings:
            given = {
                "state_dir": tmp_path / "state",
                "s3_endpoint": store.endpoint,
                "s3_region": "us-east-1",
                "snowflake_account": "acme-lake",
                "snowflake_url": recording.url if recording else None,
                "snowflake_user": "LOADER",
                "snowflake_password": PASSWORD,
                "snowflake_role": "LAKE",
                "snowflake_warehouse": "LOADING",
                "snowflake_external_volume": "lake",
                "snowflake_volume_location": "s3://lake/tables",
                "snowflake_iceberg_integration": "lake_files",
                "snowflake_delta_integration": "lake_logs",
            }
            return LakeSettings(_env_file=None, **{**given, **different})

        yield settings


@pytest.fixture
def catalog(make: Callable[..., LakeSettings]) -> Catalog:
    return open_migrated(make(None).catalog_url)


def publish(catalog: Catalog, number: int) -> None:
    Ledger(catalog).append(
        [a_publication(table="sales.orders", metadata_location=metadata(number), snapshot_id=10 * number)]
    )


def test_a_table_is_made_brought_to_the_newest_publication_and_asked_what_it_shows(
    make: Callable[..., LakeSettings], catalog: Catalog
) -> None:
    publish(catalog, 1)
    publish(catalog, 2)
    with replayed([created(2), refreshed(2), shown(metadata(2))]) as snowflake:
        followed = sync_table(catalog, *ORDERS, make(snowflake))
    assert snowflake.replayed_whole()
    assert (followed.table, followed.publication.version, followed.opened) == (NAME, 1, metadata(2))
    assert followed.query_ids == ("q-create", "q-refresh", "q-shown")
    [login] = snowflake.logins
    assert (login["ACCOUNT_NAME"], login["LOGIN_NAME"], login["PASSWORD"]) == (
        "acme-lake",
        "LOADER",
        PASSWORD,
    )
    assert (login["query"]["warehouse"], login["query"]["roleName"]) == (["LOADING"], ["LAKE"])
    assert login["SESSION_PARAMETERS"]["QUERY_TAG"] == "lakeshare"


def test_what_is_published_meanwhile_is_shown_before_the_run_ends(
    make: Callable[..., LakeSettings], catalog: Catalog
) -> None:
    publish(catalog, 1)
    during = refreshed(1, then=lambda: publish(catalog, 2))
    again = [created(2, "q-4"), refreshed(2, "q-5"), shown(metadata(2), "q-6")]
    with replayed([created(1), during, shown(metadata(1)), *again]) as snowflake:
        followed = sync_table(catalog, *ORDERS, make(snowflake))
    assert snowflake.replayed_whole()
    assert followed.publication.version == 1
    assert len(followed.query_ids) == 6


def test_a_delta_table_is_refreshed_only_at_its_published_version(
    make: Callable[..., LakeSettings], catalog: Catalog, objects: dict[str, bytes]
) -> None:
    pins = {"format": "delta", "location": "s3://lake/tables/sales/daily"}
    Ledger(catalog).append([a_publication(table="sales.daily", delta_version=1, **pins)])
    done = answered("status", "Statement executed successfully.", "q")
    exchanges = [Exchange(statement, done) for statement in DELTA_STATEMENTS]
    with replayed(exchanges) as snowflake:
        assert sync_table(catalog, *DAILY, make(snowflake)).opened == "s3://lake/tables/sales/daily"
    assert snowflake.replayed_whole()

    def commit() -> None:
        objects[f"lake/tables/sales/daily/_delta_log/{2:020}.json"] = b"{}\n"

    moving = [exchanges[0], Exchange(DELTA_STATEMENTS[1], done, then=commit)]
    with (
        replayed(moving) as snowflake,
        pytest.raises(SnowflakeError, match="is Delta version 1, but Snowflake would read version 2"),
    ):
        sync_table(catalog, *DAILY, make(snowflake))
    assert snowflake.replayed_whole()
    with replayed([]) as snowflake, pytest.raises(SnowflakeError, match="would read version 2"):
        sync_table(catalog, *DAILY, make(snowflake))
    assert snowflake.logins == []


@pytest.mark.parametrize(
    "location", ["s3://other/tables/sales/orders/metadata/1.metadata.json", metadata(2), "nowhere", ""]
)
def test_a_table_that_was_there_before_and_shows_something_else_is_told(
    make: Callable[..., LakeSettings], catalog: Catalog, location: str
) -> None:
    publish(catalog, 1)
    with (
        replayed([created(1), refreshed(1), shown(location)]) as snowflake,
        pytest.raises(SnowflakeError, match="drop it in Snowflake, or give another name"),
    ):
        sync_table(catalog, *ORDERS, make(snowflake))
    assert snowflake.replayed_whole()


@pytest.mark.parametrize(
    ("code", "state", "said", "remedy"),
    [
        ("003001", "42501", "SQL access control error:\nInsufficient privileges to operate on schema 'SALES'", "Grant"),
        ("002003", "02000", "Integration 'LAKE_FILES' does not exist or not\nauthorized.", "--with-integrations"),
        ("000606", "57P03", "No active warehouse selected in the current session.", "LAKESHARE_SNOWFLAKE_WAREHOUSE"),
        ("091357", "22000", "Failed to access the metadata file.", "query history has it as q-refused"),
    ],
)  # fmt: skip
def test_a_refused_statement_is_told_with_its_code_and_the_remedy(
    make: Callable[..., LakeSettings], catalog: Catalog, code: str, state: str, said: str, remedy: str
) -> None:
    publish(catalog, 1)
    refusal = refused(code, state, said, "q-refused")
    with replayed([created(1, answer=refusal)]) as snowflake, pytest.raises(SnowflakeError) as error:
        sync_table(catalog, *ORDERS, make(snowflake))
    assert snowflake.replayed_whole()
    text = str(error.value)
    assert f"CREATE ICEBERG TABLE IF NOT EXISTS {NAME} failed: {' '.join(said.split())}" in text
    assert f"[{int(code)}]" in text
    assert remedy in text
    assert not error.value.passing


def test_a_refused_login_names_the_settings_and_never_the_password(
    make: Callable[..., LakeSettings], catalog: Catalog
) -> None:
    publish(catalog, 1)
    answer = login_refused()
    answer["message"] += f" It was {PASSWORD}."
    with replayed([], answer) as snowflake, pytest.raises(SnowflakeError) as error:
        sync_table(catalog, *ORDERS, make(snowflake))
    assert "Incorrect username or password was specified. It was …." in str(error.value)
    assert "_PASSWORD or _PRIVATE_KEY_FILE" in error.value.fix
    assert PASSWORD not in repr(error.value)
    assert error.value.__cause__ is None


def test_a_snowflake_that_is_not_there_may_be_tried_again(
    make: Callable[..., LakeSettings], catalog: Catalog
) -> None:
    publish(catalog, 1)
    with replayed([]) as snowflake:
        gone = snowflake.url
    with pytest.raises(SnowflakeError, match="there is no connection") as error:
        sync_table(catalog, *ORDERS, make(None, snowflake_url=gone, snowflake_login_s=1))
    assert error.value.passing


def test_a_key_logs_in_instead_of_a_password(make: Callable[..., LakeSettings], tmp_path: Path) -> None:
    key = tmp_path / "loader.p8"
    key.write_bytes(a_key(b"passphrase"))
    with replayed([]) as snowflake:
        settings = make(
            snowflake,
            snowflake_password=None,
            snowflake_private_key_file=key,
            snowflake_private_key_passphrase="passphrase",
        )
        with snowflake_session(settings):
            pass
    [login] = snowflake.logins
    assert login["AUTHENTICATOR"] == "SNOWFLAKE_JWT"
    assert login["TOKEN"].count(".") == 2
    assert "PASSWORD" not in login


def a_key(passphrase: bytes) -> bytes:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    return rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(passphrase),
    )


@pytest.mark.parametrize(
    ("different", "said"),
    [
        ({"snowflake_account": None}, "LAKESHARE_SNOWFLAKE_ACCOUNT is not set"),
        ({"snowflake_user": None}, "LAKESHARE_SNOWFLAKE_USER is not set"),
        ({"snowflake_password": None}, "neither LAKESHARE_SNOWFLAKE_PASSWORD and _PRIVATE_KEY_FILE"),
        ({"snowflake_private_key_file": "/k"}, "both LAKESHARE_SNOWFLAKE_PASSWORD and _PRIVATE_KEY_FILE"),
        ({"snowflake_external_volume": None}, "no name is set for external volume"),
        ({"snowflake_iceberg_integration": None}, "no name is set for iceberg integration"),
    ],
)
def test_what_is_not_set_is_named_before_anybody_is_asked(
    make: Callable[..., LakeSettings], catalog: Catalog, different: dict[str, Any], said: str
) -> None:
    publish(catalog, 1)
    with replayed([]) as snowflake, pytest.raises(SnowflakeError, match=said):
        sync_table(catalog, *ORDERS, make(snowflake, **different))
    assert snowflake.logins == []


def test_a_connector_that_is_not_installed_is_named_with_its_extra(
    make: Callable[..., LakeSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "snowflake.connector", None)
    with (
        pytest.raises(SnowflakeError, match=r"Install lakeshare\[snowflake\]"),
        snowflake_session(make(None)),
    ):
        pass


def test_the_stand_in_refuses_a_statement_that_is_not_recorded(make: Callable[..., LakeSettings]) -> None:
    with (
        replayed([created(1)]) as snowflake,
        snowflake_session(make(snowflake)) as session,
        pytest.raises(SnowflakeError, match="the recording does not have this next"),
    ):
        session.run("DROP TABLE t")
    assert not snowflake.replayed_whole()


def test_the_command_brings_a_table_to_the_newest_publication(
    make: Callable[..., LakeSettings],
    catalog: Catalog,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    publish(catalog, 1)
    monkeypatch.chdir(tmp_path)
    words = ["sales.orders", "--database", "lake", "--schema", "sales"]
    monkeypatch.setattr("sys.argv", ["lakeshare", "snowflake", "refresh", *words])
    with replayed([created(1), refreshed(1), shown(metadata(1))]) as snowflake:
        for name, value in make(snowflake).model_dump(exclude_none=True).items():
            text = PASSWORD if name == "snowflake_password" else str(value)
            if name.startswith(("snowflake", "s3_endpoint", "s3_region", "state_dir")):
                monkeypatch.setenv(f"LAKESHARE_{name.upper()}", text)
        with pytest.raises(SystemExit) as ended:
            main()
    said = capsys.readouterr()
    assert ended.value.code == 0, said.err
    assert said.out == f"{NAME} shows publication 0 of sales.orders: {metadata(1)}\n"
    assert snowflake.replayed_whole()
