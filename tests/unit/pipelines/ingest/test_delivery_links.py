"""Nothing outside landing is read, named or published because a link in landing leads to it."""

from pathlib import Path

import pytest

from lakeshare_pipelines.contracts import load_contracts
from lakeshare_pipelines.demo.processes import deliver
from lakeshare_pipelines.errors import DeliveryError
from lakeshare_pipelines.ingest import find_deliveries, find_delivery, require_unchanged
from lakeshare_pipelines.settings import LakeSettings

FLIGHTS = next(contract for contract in load_contracts() if contract.name == "flights")
DAY = "2013-01-01"
SECRET = "root:x:0:0\nsecret-text\n"


@pytest.fixture
def settings(tmp_path: Path) -> LakeSettings:
    return LakeSettings(_env_file=None, state_dir=tmp_path / "state", quiet_s=3600)


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir()
    for name in ("departures.csv", "_SUCCESS", "_manifest.json", "secret-name.csv"):
        (folder / name).write_text(SECRET)
    return folder


def a_delivery(settings: LakeSettings) -> Path:
    folder = Path(settings.landing_root) / "flights" / DAY
    folder.mkdir(parents=True)
    (folder / "departures.csv").write_text("year\n2013\n")
    (folder / "_SUCCESS").touch()
    return folder


def refusal(settings: LakeSettings, partition: str = DAY) -> str:
    with pytest.raises(DeliveryError) as caught:
        find_delivery(settings, FLIGHTS, partition)
    assert "link" in caught.value.reason
    assert "secret" not in str(caught.value)
    assert "root:" not in str(caught.value)
    return caught.value.reason


@pytest.mark.parametrize("name", ["departures-2.csv", "_SUCCESS", "_manifest.json"])
@pytest.mark.parametrize("target", ["departures.csv", "missing"])
def test_a_file_or_marker_that_links_outside_is_refused_whether_its_target_exists_or_not(
    settings: LakeSettings, outside: Path, name: str, target: str
) -> None:
    folder = a_delivery(settings)
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(outside / target)
    found = find_deliveries(settings, FLIGHTS)
    assert [delivery.complete for delivery in found] == [True]  # its run shows the reason
    assert name in refusal(settings)


def test_a_relative_link_that_climbs_out_is_refused(settings: LakeSettings, outside: Path) -> None:
    folder = a_delivery(settings)
    (folder / "departures-2.csv").symlink_to(Path("../../../../outside/departures.csv"))
    assert "departures-2.csv" in refusal(settings)


def test_a_folder_that_links_outside_is_neither_listed_nor_read(
    settings: LakeSettings, outside: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (Path(settings.landing_root) / "flights").mkdir(parents=True)
    (Path(settings.landing_root) / "flights" / DAY).symlink_to(outside)
    assert find_deliveries(settings, FLIGHTS) == []
    assert "link" in caplog.text
    assert "secret" not in caplog.text
    assert DAY in refusal(settings)


def test_a_set_whose_folder_links_outside_is_refused(settings: LakeSettings, outside: Path) -> None:
    Path(settings.landing_root).mkdir(parents=True)
    (Path(settings.landing_root) / "flights").symlink_to(outside)
    with pytest.raises(DeliveryError, match=r"flights.*link.*LAKESHARE_LANDING"):
        find_deliveries(settings, FLIGHTS)
    assert "flights" in refusal(settings)
    with pytest.raises(DeliveryError, match="link"):
        deliver(settings, FLIGHTS, partition=DAY, rows=3)
    assert sorted(path.name for path in outside.iterdir()) == [
        "_SUCCESS",
        "_manifest.json",
        "departures.csv",
        "secret-name.csv",
    ]


def test_a_file_replaced_by_a_link_after_the_delivery_was_found_is_a_change(
    settings: LakeSettings, outside: Path
) -> None:
    folder = a_delivery(settings)
    delivery = find_delivery(settings, FLIGHTS, DAY)
    (outside / "departures.csv").write_bytes((folder / "departures.csv").read_bytes())
    (folder / "departures.csv").unlink()
    (folder / "departures.csv").symlink_to(outside / "departures.csv")
    with pytest.raises(DeliveryError, match="changed while it was read"):
        require_unchanged(delivery)


def test_links_within_landing_and_a_landing_folder_that_is_a_link_are_followed(
    settings: LakeSettings, tmp_path: Path
) -> None:
    folder = a_delivery(settings)
    shared = Path(settings.landing_root) / "shared.csv"
    shared.write_text("year\n2013\n")
    (folder / "departures-2.csv").symlink_to(shared)
    (tmp_path / "by_link").symlink_to(Path(settings.landing_root))
    linked = settings.model_copy(update={"landing": str(tmp_path / "by_link")})
    for one in (settings, linked):
        names = [file.name for file in find_delivery(one, FLIGHTS, DAY).files]
        assert names == ["departures-2.csv", "departures.csv"]
