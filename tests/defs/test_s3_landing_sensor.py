"""With landing in S3 a tick lists the bucket; when S3 refuses, the tick fails with the reason."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster_aws.s3 import S3Resource

from lakeshare_pipelines.contracts import load_contracts
from lakeshare_pipelines.definitions import defs
from lakeshare_pipelines.defs.landing import LandingResource
from lakeshare_pipelines.demo.processes import deliver
from lakeshare_pipelines.errors import DeliveryError
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_server.errors import Unavailable
from lakeshare_server.storage.remote import CONNECT_S
from lakeshare_server.storage.s3 import ANSWER_S
from tests.integration.s3_server import REGION, S3Server

ROOT = Path(__file__).parents[2]
FLIGHTS = next(contract for contract in load_contracts() if contract.name == "flights")
BUCKET = "deliveries"
Tick = Callable[[], Any]


@pytest.fixture(scope="module")
def s3(s3: S3Server) -> S3Server:
    s3.client().create_bucket(Bucket=BUCKET)
    return s3


@pytest.fixture
def landing_in_s3(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LakeSettings:
    values = {
        "LAKESHARE_STATE_DIR": str(tmp_path / "state"),
        "LAKESHARE_LANDING_S3": f"s3://{BUCKET}/{tmp_path.name}",
        "LAKESHARE_LANDING_S3_ENDPOINT": s3.endpoint,
        "LAKESHARE_LANDING_S3_REGION": REGION,
        "AWS_ACCESS_KEY_ID": s3.admin.access_key,
        "AWS_SECRET_ACCESS_KEY": s3.admin.secret_key,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": str(tmp_path / "none"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none"),
    }
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "DAGSTER_HOME"):
        monkeypatch.delenv(name, raising=False)
    return LakeSettings(_env_file=None)


@pytest.fixture
def tick(landing_in_s3: LakeSettings) -> Iterator[Tick]:
    with dg.DagsterInstance.ephemeral() as instance:

        def one() -> Any:
            definitions = defs()
            sensor = definitions.get_repository_def().get_sensor_def("landing_flights")
            s3 = {"s3": (definitions.resources or {})["s3"]}
            with dg.build_sensor_context(instance, definitions=definitions, resources=s3) as context:
                result = sensor.evaluate_tick(context)
            for request in result.dynamic_partitions_requests or []:
                instance.add_dynamic_partitions(request.partitions_def_name, list(request.partition_keys))
            return result

        yield one


def test_what_lands_in_s3_starts_a_run_once(landing_in_s3: LakeSettings, tick: Tick) -> None:
    assert "none of them new" in tick().skip_message
    deliver(landing_in_s3, FLIGHTS, partition="2013-01-02", rows=5)
    deliver(landing_in_s3, FLIGHTS, partition="2013-01-01", rows=5)

    first = tick()
    assert [request.partition_key for request in first.run_requests] == ["2013-01-01", "2013-01-02"]
    assert not tick().run_requests

    deliver(landing_in_s3, FLIGHTS, partition="2013-01-01", rows=6)
    corrected = tick()
    assert [request.partition_key for request in corrected.run_requests] == ["2013-01-01"]
    assert corrected.run_requests[0].run_key != first.run_requests[0].run_key


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("LAKESHARE_LANDING_S3", "s3://nowhere/in", "s3://nowhere/in/flights: there is no such bucket"),
        ("AWS_SECRET_ACCESS_KEY", "wrong", "the secret key does not belong to the access key"),
        ("LAKESHARE_LANDING_S3_ENDPOINT", "http://127.0.0.1:9", "the store did not answer"),
    ],
)
def test_a_tick_fails_with_bucket_reason_and_remedy(
    tick: Tick, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, told: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(Exception, match=r".") as caught:
        tick()
    ours = cause_of(caught.value)
    assert told in str(ours)
    assert ours.fix in str(ours)


def test_the_location_of_the_workspace_file_loads_and_its_failed_tick_shows_our_error_in_dagster_itself(
    tmp_path: Path, landing_in_s3: LakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    # It loads the definitions in a server process, as the daemon does; it ends with 0 even when the tick failed.
    command = "dagster sensor preview landing_flights -w workspace.yaml"
    ended = subprocess.run(
        [sys.executable, "-m", *command.split()], cwd=ROOT, check=False, capture_output=True, text=True
    )
    output = ended.stdout + ended.stderr
    assert ended.returncode == 0, output
    assert "StoreError" in output
    assert f"{landing_in_s3.landing}/flights: the secret key does not belong to the access key" in output


def test_a_tick_without_credentials_says_where_they_come_from(
    tick: Tick, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(Exception, match=r".") as caught:
        tick()
    assert "no usable credentials" in str(cause_of(caught.value))
    assert "AWS_ACCESS_KEY_ID" in str(cause_of(caught.value))


def test_the_resource_is_dagsters_own_as_the_settings_say(landing_in_s3: LakeSettings, s3: S3Server) -> None:
    resource = (defs().resources or {})["s3"]
    assert isinstance(resource, S3Resource)
    assert isinstance(resource, LandingResource)
    assert (resource.endpoint_url, resource.region_name) == (s3.endpoint, REGION)
    client = resource.get_client()
    url = client.generate_presigned_url("get_object", Params={"Bucket": BUCKET, "Key": "k"})
    assert url.startswith(f"{s3.endpoint}/{BUCKET}/k?")
    assert (client.meta.config.connect_timeout, client.meta.config.read_timeout) == (CONNECT_S, ANSWER_S)


def test_credentials_of_the_resource_are_found_within_the_deadline(
    landing_in_s3: LakeSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    (tmp_path / "slow").write_text("[default]\ncredential_process = sleep 60\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "slow"))
    monkeypatch.setenv("LAKESHARE_OUTSIDE_ANSWER_S", "0.5")
    resource = (defs().resources or {})["s3"]
    with pytest.raises(
        Unavailable, match=r"credentials of S3 does not answer: nothing came within 0\.5 seconds"
    ):
        resource.get_client()


def cause_of(error: BaseException) -> DeliveryError:
    """Our error, whatever Dagster wrapped it in."""
    while not isinstance(error, DeliveryError):
        inner = error.__cause__ or getattr(error, "user_exception", None)
        assert inner is not None, f"no DeliveryError in {error!r}"
        error = inner
    return error
