"""The doctor looks at everything a run needs, changes nothing, and says what to do about each finding."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from lakeshare_pipelines.backup.policies import Check
from lakeshare_pipelines.cli import doctor
from lakeshare_pipelines.cli.doctor import examine
from lakeshare_pipelines.cli.main import app
from lakeshare_pipelines.nessie.client import load_signing_key
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.spark import jars


def settings_of(tmp_path: Path, **more: object) -> LakeSettings:
    return LakeSettings(**{"state_dir": tmp_path / "state", "cache_dir": tmp_path / "cache", **more})


def the(findings: list[Check], name: str) -> Check:
    [found] = [finding for finding in findings if finding.name == name]
    return found


def test_a_fresh_machine_is_in_order_and_stays_untouched(tmp_path):
    findings = examine(settings_of(tmp_path))
    assert [finding for finding in findings if not finding.ok] == []
    assert {"packages", "jars", "state folder", "landing folder", "database", "Nessie"} <= {
        f.name for f in findings
    }
    assert {"Java for Spark 4.1", "Java for Nessie 0.99"} <= {f.name for f in findings}
    assert list(tmp_path.iterdir()) == []


def test_a_cache_folder_that_cannot_be_written_is_in_order_offline_only(tmp_path: Path) -> None:
    """An image has the jars on its read-only root."""
    (tmp_path / "file").write_text("")
    cache_dir = tmp_path / "file" / "cache"
    assert not the(list(doctor.check_folders(settings_of(tmp_path, cache_dir=cache_dir))), "cache folder").ok
    offline = doctor.check_folders(settings_of(tmp_path, cache_dir=cache_dir, offline=True))
    assert "cache folder" not in {finding.name for finding in offline}


def test_every_fault_has_a_remedy_and_every_remedy_a_fault(tmp_path, monkeypatch):
    monkeypatch.setattr(jars, "find_packaged_java", lambda: None)
    monkeypatch.setattr(jars, "USUAL_FOLDERS", ())
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))
    monkeypatch.setenv("HTTPS_PROXY", "proxy:3128")
    (tmp_path / "file").write_text("")
    findings = examine(
        settings_of(
            tmp_path,
            state_dir=tmp_path / "file" / "state",
            landing=tmp_path / "unmounted",
            database_url=f"sqlite:///{tmp_path}",
            contracts_dir=tmp_path / "none",
            nessie_uri="http://127.0.0.1:9/api/v2",
            offline=True,
        )
    )
    faulty = {finding.name for finding in findings if not finding.ok}
    assert faulty == {
        "Java for Spark 4.1",
        "Java for Nessie 0.99",
        "jars",
        "state folder",
        "contracts",
        "warehouse",
        "landing folder",
        "database",
        "Nessie",
        "certificates",
        "proxy",
    }
    assert all(bool(finding.remedy) != finding.ok for finding in findings)


def test_a_database_without_a_valid_url_is_a_fault(tmp_path: Path) -> None:
    for address in ("postgresql+psycopg://me:cret@db:54x2/x", "cret"):
        [finding] = doctor.check_database(settings_of(tmp_path, database_url=address))
        assert (finding.ok, finding.detail) == (False, "its URL has no valid form, which may be its port")


def test_a_file_that_is_no_database_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "lakeshare.db").write_bytes(b"no database here")
    [finding] = doctor.check_database(
        settings_of(tmp_path, database_url=f"sqlite:///{tmp_path}/lakeshare.db")
    )
    assert (finding.ok, "file is not a database" in finding.detail) == (False, True)


def test_the_command_prints_each_finding_and_ends_with_1_if_one_is_a_problem(tmp_path: Path) -> None:
    environment = {
        "LAKESHARE_STATE_DIR": str(tmp_path / "state"),
        "LAKESHARE_CACHE_DIR": str(tmp_path / "cache"),
    }
    ended = CliRunner(env=environment).invoke(app, ["doctor"])
    assert (ended.exit_code, "FAIL" in ended.output) == (0, False), ended.output
    ended = CliRunner(env={**environment, "LAKESHARE_CONTRACTS_DIR": str(tmp_path)}).invoke(app, ["doctor"])
    assert ended.exit_code == 1
    assert f"FAIL  contracts: {tmp_path}: the folder: holds no contract." in ended.output
    assert "      → Correct it; `lakeshare contract check`" in ended.output
    assert f"ok    warehouse: {tmp_path / 'state' / 'warehouse'} can be written" in ended.output


def test_another_version_than_the_pinned_one_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "_required_packages", lambda: iter([("pyspark", "3.5.0"), ("no-such", None)]))
    packages = the(examine(settings_of(tmp_path)), "packages")
    assert not packages.ok
    assert "pyspark 4.1.4 (wanted 3.5.0)" in packages.detail
    assert "no-such missing" in packages.detail


def test_a_key_that_others_can_read_is_a_fault(tmp_path):
    settings = settings_of(tmp_path)
    key = settings.state_dir / "nessie" / "key.pem"
    key.parent.mkdir(parents=True)
    load_signing_key(key)
    assert "Nessie's key" not in {finding.name for finding in examine(settings)}
    key.chmod(0o644)
    assert the(examine(settings), "Nessie's key").remedy == f"chmod 600 {key}"


def test_little_space_is_a_fault(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "MIN_FREE_BYTES", 10**18)
    assert "LAKESHARE_STATE_DIR" in the(examine(settings_of(tmp_path)), "disk of the state folder").remedy


@pytest.mark.parametrize("proxy", ["http://user:secret@proxy.example:3128", "http://proxy.example:3128"])
def test_a_proxy_is_shown_without_its_password(tmp_path, monkeypatch, proxy):
    monkeypatch.setenv("HTTPS_PROXY", proxy)
    found = the(examine(settings_of(tmp_path)), "proxy")
    assert found.ok
    assert "http://proxy.example:3128" in found.detail
    assert "secret" not in found.detail
