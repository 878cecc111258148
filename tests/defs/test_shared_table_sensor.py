"""The sensor of recipients starts one run for each number of a shared table, also after an outage, on any server."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

import lakeshare_pipelines
from lakeshare_pipelines.defs.shared_table import shared_table_sensor
from lakeshare_pipelines.errors import SourceError
from lakeshare_pipelines.share import updates
from lakeshare_server.access.authentication import make_profile, write_profile_file
from lakeshare_server.catalog import Ledger, SharedTable
from lakeshare_server.catalog.credentials import issue_token
from lakeshare_server.catalog.sharing import (
    add_table,
    alter_table,
    create_recipient,
    create_share,
    editing,
    grant,
)
from lakeshare_server.errors import BadRequest
from tests.builders.publications import a_publication
from tests.builders.sharing import Provider, a_provider, a_server
from tests.fakes.model_requests import Reply, Request
from tests.fakes.model_server import a_model_server

TABLE = "sales.lake.orders"


@dg.asset
def report(context: dg.AssetExecutionContext) -> str:
    return context.run.tags["lakeshare/number"]


class Daemon:
    """Evaluates the ticks of a sensor and runs its requests as Dagster's daemon does: each run key once."""

    def __init__(self, sensor: dg.SensorDefinition, instance: dg.DagsterInstance) -> None:
        self.sensor, self.instance, self.cursor = sensor, instance, None
        self.keys: list[str] = []
        self.runs: list[str] = []

    def tick(self, *, crashes: bool = False) -> str | None:
        """The reason for a skip; a daemon that crashes has started the runs, and has not stored the cursor."""
        context = dg.build_sensor_context(instance=self.instance, cursor=self.cursor)
        data = self.sensor.evaluate_tick(context)
        job = dg.Definitions(assets=[report]).resolve_implicit_global_asset_job_def()
        for request in data.run_requests:
            if request.run_key not in self.keys:
                self.keys.append(request.run_key)
                result = job.execute_in_process(instance=self.instance, tags=request.tags)
                self.runs.append(result.output_for_node("report"))
        if not crashes:
            self.cursor = data.cursor
        return data.skip_message


@pytest.fixture(scope="module")
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


@pytest.fixture
def provider(tmp_path: Path) -> Iterator[Provider]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # Pages of a provider may be smaller than those that are asked for.
    made = a_provider(tmp_path, port=port, page_size=2)
    with editing(made.catalog, "tests") as edit:
        create_share(edit, "sales")
        add_table(edit, "sales", SharedTable("lake", "orders", "lake.orders"))
    yield made
    made.catalog.close()


def publish(provider: Provider, times: int = 1) -> None:
    for _ in range(times):
        Ledger(provider.catalog).append([a_publication(table="lake.orders")])


def profile_of(provider: Provider, authentication: str = "TOKEN") -> Path:
    with editing(provider.catalog, "tests") as edit:
        recipient = create_recipient(edit, authentication, authentication=authentication)
        grant(edit, "sales", recipient=authentication)
        issued = issue_token(edit, authentication)
    path = provider.settings.state_dir / f"{authentication}.share"
    write_profile_file(path, make_profile(recipient, issued, provider.settings))
    return path


def test_each_number_starts_one_run_also_several_at_once_and_after_outages(
    provider: Provider, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SALES_PROFILE", str(profile_of(provider)))
    sensor = shared_table_sensor(dg.EnvVar("SALES_PROFILE"), TABLE, target=[report])
    daemon = Daemon(sensor, instance)
    publish(provider, 2)
    with a_server(provider):
        daemon.tick()
        assert daemon.runs == ["1"]
        assert daemon.tick() == f"{TABLE} is at number 1 still."
        publish(provider, 5)
        daemon.tick(crashes=True)
        daemon.tick()
        assert daemon.runs == ["1", "2", "3", "4", "5", "6"]

    # The provider is down, and publishes in the meantime.
    publish(provider, 2)
    assert "does not answer" in str(daemon.tick())
    with a_server(provider):
        daemon.tick()
        assert daemon.runs[6:] == ["7", "8"]
        with editing(provider.catalog, "tests") as edit:
            alter_table(edit, "sales", "lake", "orders", publication=3)
        assert "went back from number 8 to 3" in str(daemon.tick())
    assert daemon.keys == [f"{TABLE}@{number}" for number in range(1, 9)]
    [run] = instance.get_runs(dg.RunsFilter(tags={"lakeshare/number": "8"}))
    assert run.tags["lakeshare/shared_table"] == TABLE
    assert run.tags["lakeshare/published_at"] > "2026"


def test_profiles_with_client_credentials_work_and_wrong_ones_are_errors(
    provider: Provider, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    publish(provider)
    daemon = Daemon(
        shared_table_sensor(profile_of(provider, "OAUTH_CLIENT_CREDENTIALS"), TABLE, target=[report]),
        instance,
    )
    fields = {"shareCredentialsVersion": 1, "bearerToken": "wrong", "endpoint": provider.settings.base_url()}
    wrong = {"token": json.dumps(fields), "text": "no JSON", "object": "{}"}
    with a_server(provider):
        daemon.tick()
        assert daemon.runs == ["0"]
        for name, text in wrong.items():
            (tmp_path / name).write_text(text)
            with pytest.raises(SourceError, match="its server refuses, or"):
                updates.SharedTableUpdates(tmp_path / name, TABLE).newest()
        profile = profile_of(provider)
        for path, table in ((profile, "sales.lake.none"), (profile, "orders"), (tmp_path / "missing", TABLE)):
            with pytest.raises(SourceError):
                updates.SharedTableUpdates(path, table).newest()
    for both in ({}, {"target": [report], "job": dg.define_asset_job("x")}):
        with pytest.raises(BadRequest, match="job, target"):
            lakeshare_pipelines.shared_table_sensor("x", TABLE, **both)


def test_a_server_without_a_feed_starts_a_run_for_its_newest_number(
    instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    with a_model_server() as server:
        path = tmp_path / "model.share"
        path.write_text(json.dumps(server.profile.fields))
        table = next(table for table in server.model.tables if table.latest > 1)
        name, newest = f"{table.share}.{table.schema}.{table.name}", table.latest
        daemon = Daemon(shared_table_sensor(path, name, target=[report]), instance)
        daemon.cursor = str(newest - 2)

        daemon.tick()

        assert daemon.runs == [str(newest)]
        assert daemon.tick() == f"{name} is at number {newest} still."


@pytest.mark.parametrize("item", [5, {"_lakeshare": "x"}, {"_lakeshare": {"event": "publication"}}])
def test_a_feed_of_another_form_is_an_error_that_names_the_table(
    instance: dg.DagsterInstance, tmp_path: Path, item: object
) -> None:
    def send_feed(request: Request, reply: Reply) -> None:
        if request.path.endswith("/publications"):
            reply.status = 200
            reply.body = json.dumps({"version": "https://jsonfeed.org/version/1.1", "items": [item]}).encode()

    with a_model_server() as server:
        server.defect = send_feed
        path = tmp_path / "model.share"
        path.write_text(json.dumps(server.profile.fields))
        table = next(table for table in server.model.tables if table.latest > 1)
        name = f"{table.share}.{table.schema}.{table.name}"
        daemon = Daemon(shared_table_sensor(path, name, target=[report]), instance)
        daemon.cursor = str(table.latest - 1)
        with pytest.raises(SourceError, match=f"{name}: its server refuses, or .* is no profile"):
            daemon.tick()
    assert daemon.runs == []
