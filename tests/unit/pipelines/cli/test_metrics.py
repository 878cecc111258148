"""`lakeshare metrics` changes nothing, and a source that fails or hangs hides no other one."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest

from lakeshare_pipelines.cli import metrics
from lakeshare_pipelines.cli.metrics import Exporter, Source
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_server.errors import Unavailable
from lakeshare_server.metrics import LANDING, Samples
from tests.builders.scrapes import Scrape
from tests.builders.sets import a_contract
from tests.builders.waiting import wait_until


def read(url: str) -> Scrape:
    found = Scrape()
    found.add(httpx.get(url, timeout=30).text)
    return found


def test_the_command_serves_until_it_is_interrupted(tmp_path: Path) -> None:
    a_contract(tmp_path / "contracts", "shop", "delta")
    places = {"LAKESHARE_STATE_DIR": "state", "LAKESHARE_CONTRACTS_DIR": "contracts"}
    environment = {name: str(tmp_path / folder) for name, folder in places.items()}
    with subprocess.Popen(
        [sys.executable, "-m", "lakeshare_pipelines", "metrics", "--port", "0"],
        env={**os.environ, **environment, "LAKESHARE_LOG_FORMAT": "json"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            [url] = [word for word in process.stdout.readline().split() if word.startswith("http")]
            wait_until(lambda: read(url).values("lakeshare_source_up", source="backup:lake") == [1])
            process.send_signal(signal.SIGINT)
            _, log = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 0
    messages = [json.loads(line)["message"] for line in log.splitlines()]
    assert [message for message in messages if "catalog cannot be read: there is no catalog yet" in message]


def test_without_a_catalog_the_other_sources_are_read_and_nothing_is_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_contract(tmp_path / "contracts", "shop", "delta")
    monkeypatch.setenv("LAKESHARE_CONTRACTS_DIR", str(tmp_path / "contracts"))
    settings = LakeSettings(_env_file=None, state_dir=tmp_path / "state")
    (tmp_path / "state").mkdir()
    exporter = Exporter(settings, refresh_s=3600)
    with exporter.serve("127.0.0.1", 0) as url:
        wait_until(lambda: len(read(url).values("lakeshare_source_age_seconds")) == 3)
        up = {labels["source"]: value for labels, value in read(url).samples["lakeshare_source_up"]}
        with pytest.raises(Unavailable, match="cannot listen"):
            Exporter(settings).serve("127.0.0.1", int(url.split(":")[2].split("/")[0])).__enter__()
    assert up == {"staged": 1, "landing": 1, "catalog": 0, "backup:lake": 1}
    assert list((tmp_path / "state").iterdir()) == []


def test_a_source_that_fails_or_hangs_is_down_and_shows_what_it_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "READ_S", 0.05)
    go_on, values = threading.Event(), [7]

    def read_value() -> int:
        if not values:
            raise Unavailable("the store does not answer", "Wait.")
        return values.pop()

    source = Source("landing", 3600, read_value, lambda samples, value: samples.add(LANDING, value, "shop"))

    def is_up() -> tuple[float, float | None]:
        samples = Samples()
        source.add_to(samples)
        found = {metric.name: next(iter(of.values())) for metric, of in samples.values.items()}
        return found["lakeshare_source_up"], found.get("lakeshare_landing_deliveries")

    assert is_up() == (0, None)
    source.read_once()
    assert is_up() == (1, 7)
    source.read_once()
    assert is_up() == (0, 7)
    values.append(8)
    source.read_once()
    assert is_up() == (1, 8)
    source._read = lambda: go_on.wait(30) and 9
    reading = threading.Thread(target=source.read_once)
    reading.start()
    wait_until(lambda: is_up() == (0, 8))
    go_on.set()
    reading.join()
    assert is_up() == (1, 9)
