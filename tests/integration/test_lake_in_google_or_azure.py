"""A lake whose warehouse is in Google Cloud Storage or Azure: published, corrected and read as on the disk.

On fake-gcs-server, which checks no credentials: Spark and deltalake send none to an endpoint without TLS. On Azurite
with an account's key.
"""

from collections.abc import Iterator
from uuid import uuid4

import delta_sharing
import pytest
from azure.storage.blob import BlobServiceClient
from pydantic import SecretStr

from lakeshare_pipelines.cli.doctor import check_folders
from lakeshare_pipelines.contracts import SetContract
from lakeshare_pipelines.ingest.landing import open_landing
from lakeshare_pipelines.wap.stage import drop_staging_location, stage
from lakeshare_pipelines.wap.staged import Lake, read_quarantine
from lakeshare_server.catalog import Catalog, DeclaredShare, SharedTable, apply_shares
from lakeshare_server.locations import find_root
from lakeshare_server.settings import ServerSettings
from tests.builders.answering_store import answering_store
from tests.builders.campaign import IS_CAMPAIGN
from tests.builders.google_account import account_file, token_answer
from tests.builders.recipients import Recipients
from tests.builders.sets import an_order, green, orders
from tests.builders.sharing import Provider, a_server
from tests.integration.azurite import ACCOUNT, ACCOUNT_KEY, running_azurite
from tests.integration.conftest import a_lake_with
from tests.integration.gcs_server import create_bucket, running_gcs
from tests.integration.test_publication import MONDAY, TUESDAY, PublishedSet, rows_of


@pytest.fixture(scope="module")
def gcs_lake(lake: Lake, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    folder, bucket = tmp_path_factory.mktemp("gcs"), f"lake-{uuid4().hex[:8]}"
    with (
        running_gcs(folder) as endpoint,
        answering_store(lambda _: token_answer("a-token")) as google,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(account_file(folder, f"{google.endpoint}/token")))
        create_bucket(endpoint, bucket)
        yield a_lake_with(lake, warehouse=f"gs://{bucket}/a lake", gcs_endpoint=endpoint)


@pytest.fixture(scope="module")
def azure_lake(lake: Lake, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    container = f"lake-{uuid4().hex[:8]}"
    with running_azurite(tmp_path_factory.mktemp("azurite"), has_tls=False) as azurite:
        with BlobServiceClient(azurite.endpoint, ACCOUNT_KEY) as service:
            service.create_container(container)
        yield a_lake_with(
            lake,
            warehouse=f"abfss://{container}@{ACCOUNT}.dfs.core.windows.net/a lake",
            azure_account=ACCOUNT,
            azure_account_key=SecretStr(ACCOUNT_KEY),
            azure_endpoint=azurite.endpoint,
        )


@pytest.mark.campaign
@pytest.mark.parametrize("contract", ["iceberg", "delta"] if IS_CAMPAIGN else ["delta"], indirect=True)
def test_a_set_is_published_corrected_and_read_in_google_cloud_storage(
    gcs_lake: Lake, catalog: Catalog, contract: SetContract
) -> None:
    a_set_is_published_corrected_and_read(PublishedSet(gcs_lake, catalog, contract))


# For minutes: under `make campaign` only.
if IS_CAMPAIGN:

    @pytest.mark.campaign
    def test_a_set_is_published_corrected_and_read_in_azure(
        azure_lake: Lake, catalog: Catalog, contract: SetContract
    ) -> None:
        a_set_is_published_corrected_and_read(PublishedSet(azure_lake, catalog, contract))


def a_set_is_published_corrected_and_read(published_set: PublishedSet) -> None:
    published_set.deliver(MONDAY, [*orders(MONDAY, 3), an_order("no day", 7)])
    staged = stage(published_set.lake, published_set.contract, [MONDAY], str(uuid4()))
    published = published_set.publish(staged, green(published_set.contract, staged))
    assert [(row.version, row.rows) for row in published] == [(0, 3), (0, 1)]
    [rejected] = read_quarantine(published_set.lake.settings, published_set.contract.name)
    assert "no day" in str(rejected["raw"])
    published_set.deliver(MONDAY, orders(MONDAY, 1))
    published = published_set.publish(*published_set.staged_and_green(MONDAY))
    assert [(row.version, row.rows) for row in published] == [(1, 1), (1, 1)]
    assert [row[:2] for row in published_set.rows()] == [(MONDAY, orders(MONDAY, 1)[0]["id"])]
    published_set.require_spark_reads_the_same()
    if published_set.contract.tables[0].format == "delta":
        discarding_leaves_no_object(published_set)
    a_recipient_reads_the_same(published_set)


def discarding_leaves_no_object(published_set: PublishedSet) -> None:
    stores, root = published_set.lake.stores, published_set.lake.settings.lake_root
    before = {found.location for found in stores.list(root)}
    lake = delivered_beside(published_set, TUESDAY, orders(TUESDAY, 2))
    staged = stage(lake, published_set.contract, [TUESDAY], str(uuid4()))
    assert [table.rows for table in staged.tables] == [2, 1]
    assert {found.location for found in stores.list(root)} - before
    drop_staging_location(published_set.lake, published_set.contract, staged.ref)
    assert {found.location for found in stores.list(root)} == before


def delivered_beside(published_set: PublishedSet, day: str, rows: list[dict[str, object]]) -> Lake:
    """The lake with its landing area in the same bucket, and a delivery there."""
    lake = published_set.lake
    landing = f"{find_root(lake.settings.lake_root)}/landing"
    there = Lake(lake.settings.model_copy(update={"landing": landing}), lambda: lake.spark)
    there.__dict__["endpoint"] = lake.endpoint
    lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
    contents = {"orders.csv": "\n".join(lines).encode()}
    open_landing(there.settings).replace(published_set.contract.name, day, contents)
    return there


def a_recipient_reads_the_same(published_set: PublishedSet) -> None:
    settings, name = published_set.lake.settings, published_set.contract.name
    apply_shares(
        published_set.catalog, [DeclaredShare(name, (SharedTable("shop", "orders", f"{name}.orders"),))]
    )
    _, token = Recipients(published_set.catalog).add(f"{name}-reader", (name,))
    stores = {name for name in type(settings).model_fields if name.startswith(("gcs_", "azure_"))}
    sharing = ServerSettings(
        _env_file=None, port=0, **settings.model_dump(include={"state_dir", "warehouse", *stores})
    )
    with a_server(Provider(sharing, published_set.catalog)) as server:
        frame = delta_sharing.load_as_pandas(f"{server.profile(token)}#{name}.shop.orders")
        assert rows_of(frame) == published_set.rows()


@pytest.mark.parametrize("store", ["gcs_lake", "azure_lake"])
def test_the_doctor_checks_rights_conditional_writes_and_the_clock(
    store: str, request: pytest.FixtureRequest
) -> None:
    there = request.getfixturevalue(store)
    [found] = [found for found in check_folders(there.settings) if found.name == "warehouse"]
    assert found.ok, found
    assert found.detail.startswith(f"{there.settings.lake_root} can be read, written, listed and deleted")
