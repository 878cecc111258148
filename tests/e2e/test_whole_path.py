"""The whole path as a user walks it: the demo, a recipient's reads, a red run and what can be done with it.

One file, because one lake serves all of it: the demo makes it, the other tests go on from there.
"""

import html
import json
import re
import subprocess
import time
from urllib.parse import urlsplit

import delta_sharing
import httpx
import pandas as pd
import psutil
import pytest
from playwright.sync_api import expect

from lakeshare_pipelines.contracts import load_contracts
from lakeshare_pipelines.demo import processes
from lakeshare_pipelines.nessie.server import nessie_status
from lakeshare_server.catalog import Ledger, open_catalog
from tests.builders.spark_apart import delete_on_branch, frames_on_main, reexecute_newest_failure, run_set_job
from tests.e2e.conftest import BIN, COMMAND_S, ROOT

LOOK_S = 0.2
# Every test may be the one that waits for the demo (COMMAND_S).
pytestmark = pytest.mark.timeout(1200)
TABLE = "aviation.flights.departures"
FLIGHTS = next(contract for contract in load_contracts() if contract.name == "flights")
SELECT = "flights/departures,flights/daily_delays"
# Beside what other tests run.
JOB_MS = 600_000
CI_GATE = ("lakeshare", "ci-gate", "--errors-only", "--select", SELECT)
TABLES = [
    f"{entry.share}.{entry.schema}.{entry.name}" for contract in load_contracts() for entry in contract.shares
]


def test_the_demo_ends_with_every_row_count_right(demo):
    """On the Java that comes from PyPI, in a folder with a blank; Spark and Nessie are silent on the terminal."""
    assert demo.first.code == 0, demo.first.text + demo.first.errors
    assert demo.first.errors == ""
    assert "Java 21 for Spark" in demo.first.text
    assert "every row count is right" in demo.first.text
    assert "stopped by  flights/departures: expect_column_values_to_not_be_null__carrier" in demo.first.text
    watched = re.search(r"the recipient read (\d+) times and saw only publication 0", demo.first.text)
    assert watched is not None
    assert int(watched[1]) > 10


def test_the_demo_lost_tables_and_a_backup_point_brought_them_back(demo, run):
    assert demo.first.text.count("the recipient's read fails") == 2
    assert demo.first.text.count("rows, the same as before") == 2
    points = run("lakeshare", "backup", "list")
    assert points.code == 0, points.text
    assert " verified " in points.text
    shown = run("lakeshare", "backup", "show", "lake")
    assert "flights/departures" in shown.text
    assert "reference/planes" in shown.text


def test_a_second_start_starts_no_run_and_ends_what_it_started_when_it_is_terminated(demo, tmp_path):
    """Without `--once`: it stays with the console and the Dagster UI until a signal comes."""
    printed = tmp_path / "printed.txt"
    command, environment = [str(BIN / "lakeshare"), "demo"], dict(demo.environment)
    with (
        printed.open("w") as out,
        subprocess.Popen(command, env=environment, cwd=ROOT, stdout=out, stderr=out) as process,
    ):
        try:
            while process.poll() is None and "stop with Ctrl-C" not in printed.read_text():
                time.sleep(LOOK_S)
            text, started = printed.read_text(), psutil.Process(process.pid).children(recursive=True)
            url = re.findall(r"http://[\d.:]+(?=/runs)", text)[0]
            assert httpx.get(f"{url}/server_info", trust_env=False).status_code == 200
            process.terminate()
            assert process.wait(COMMAND_S) == 0, printed.read_text()
        finally:
            process.kill()
    assert "every row count is right" in text
    assert "flights write" not in text
    assert len(started) > 2
    assert psutil.wait_procs(started, COMMAND_S)[1] == []


def test_the_recipient_sees_the_tables_of_both_sets(served):
    assert processes.list_tables(served) == sorted(TABLES)


@pytest.fixture(scope="module")
def spark_rows(demo, apart):
    """What Spark reads from main, as pandas, per table."""
    return apart(frames_on_main, demo.settings.state_dir)


@pytest.mark.parametrize("name", TABLES)
def test_the_client_reads_what_spark_reads_row_for_row(served, spark_rows, name):
    through_us = delta_sharing.load_as_pandas(f"{served}#{name}")
    directly = spark_rows[name]

    assert len(through_us) == len(directly) > 0
    pd.testing.assert_frame_equal(_ordered(through_us), _ordered(directly), check_dtype=False)


def _ordered(frame: pd.DataFrame) -> pd.DataFrame:
    """One spelling of equal values, sorted by every column: dates as text, instants in UTC, no categories."""
    frame = frame[sorted(frame.columns)].copy()
    for name in frame.columns:
        if isinstance(frame[name].dtype, pd.DatetimeTZDtype):
            frame[name] = frame[name].dt.tz_convert("UTC").dt.tz_localize(None)
        elif frame[name].dtype == object:
            frame[name] = frame[name].map(lambda value: None if value is None else str(value))
    return frame.sort_values(list(frame.columns), na_position="first").reset_index(drop=True)


def test_the_recipient_proves_that_each_table_is_what_was_audited(served, run, tmp_path):
    assert run("lakeshare", "evidence", "export", "--to", str(tmp_path / "provider.pem")).code == 0
    for name in TABLES:
        verified = run(
            "lakeshare", "verify", f"{served}#{name}", "--key", str(tmp_path / "provider.pem"), "--files"
        )
        assert verified.code == 0, verified.text
        assert verified.text.rstrip().endswith("fully verified")


def materialize(run, day):
    return run(
        "dagster", "asset", "materialize", "--select", SELECT, "--partition", day,
        "-m", "lakeshare_pipelines.definitions",
    )  # fmt: skip


def red_place(run, day):
    """The name of the red staged set of a day."""
    listed = run("lakeshare", "wap", "list").text
    return next(line.split()[0] for line in listed.splitlines() if " red " in line and f"-{day}-" in line)


def clear_nulls(demo, apart, ref):
    apart(delete_on_branch, demo.settings.state_dir, FLIGHTS, ref, "carrier IS NULL")


def latest(demo):
    return Ledger(open_catalog(demo.settings.catalog_url)).latest("flights.departures")


def test_a_red_run_changes_nothing_for_recipients(demo, served, run):
    """What they read during a red run: the demo watches that of its own."""
    before = latest(demo)
    rows = processes.read_table(served, TABLE)
    assert run("lakeshare", "deliver", "flights", "--day", "2013-01-05", "--nulls", "carrier").code == 0

    ran = materialize(run, "2013-01-05")

    assert ran.code not in (0, None)
    assert latest(demo) == before
    assert processes.read_version(served, TABLE) == before.version
    assert processes.read_table(served, TABLE).equals(rows)
    gate = run(*CI_GATE)
    assert gate.code == 1
    assert "flights/departures expect_column_values_to_not_be_null__carrier: ERROR failed" in gate.text


def test_every_page_of_the_console_opens_with_the_demo_s_data(demo, served):
    """From the first page, along every link, with the key that the demo leaves."""
    root = urlsplit(json.loads(served.read_text())["endpoint"])._replace(path="").geturl()
    key = demo.settings.first_key_file.read_text().strip()
    found, opened = ["/console/"], {}
    with httpx.Client(base_url=root, timeout=60, follow_redirects=True) as client:
        assert client.post("/console/sign-in", data={"key": key}).status_code == 200
        while found:
            path = found.pop()
            page = client.get(path)
            assert page.status_code == 200, (path, page.text)
            opened[path.partition("?")[0]] = page.text
            links = {html.unescape(link) for link in re.findall(r'href="(/console[^"#]*)"', page.text)}
            found += [link for link in sorted(links - {*found}) if link.partition("?")[0] not in opened]
        difference = client.get("/console/drift?contracts=yes").text
    assert len(opened) > 20
    assert f"/console/tables/{FLIGHTS.tables[0].name}" in opened
    assert '<span class="null">not shared' not in opened["/console/tables"]
    assert "are shared as they declare it" in difference


def test_a_red_set_is_inspected_by_command_and_corrected_in_the_console(demo, served, apart, run, browser):
    """Signed in with the demo's key: the red set and why, its retry as a job, the new number, and the audit log.

    The job is `lakeshare wap retry`, in a process of its own.
    """
    ref = red_place(run, "2013-01-05")
    shown = run("lakeshare", "wap", "show", ref)
    assert "FAIL  flights.departures: expect_column_values_to_not_be_null__carrier" in shown.text
    still_red = run("lakeshare", "wap", "retry", ref)
    assert still_red.code == 1, still_red.text
    before = latest(demo)
    context = browser.new_context(
        base_url=json.loads(served.read_text())["endpoint"].removesuffix("/delta-sharing")
    )
    page = context.new_page()
    page.goto("/console/quality")
    page.get_by_role("textbox", name="Key").fill(demo.settings.first_key_file.read_text().strip())
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("link", name=ref).click()
    failed = page.get_by_role("region", name="What failed")
    expect(failed).to_contain_text("flights.departures: expect_column_values_to_not_be_null__carrier")
    clear_nulls(demo, apart, ref)
    page.get_by_role("button", name="Retry").click()
    # The page of the job opens itself again until it has ended.
    expect(page.get_by_role("status")).to_have_text("succeeded", timeout=JOB_MS)
    expect(page.get_by_text(f"lakeshare wap retry -- {ref}")).to_be_visible()
    assert latest(demo).version == before.version + 1
    assert latest(demo).partition == "2013-01-05"
    assert processes.read_version(served, TABLE) == before.version + 1
    assert ref not in run("lakeshare", "wap", "list").text
    page.goto("/console/quality")
    expect(page.get_by_role("heading", level=1)).to_have_text("Quality")
    expect(page.get_by_role("link", name=ref)).to_have_count(0)
    page.goto("/console/publications/flights.departures")
    expect(page.get_by_role("link", name=str(before.version + 1), exact=True).first).to_be_visible()
    page.goto("/console/audit?principal=first")
    expect(page.get_by_text("console_retry").first).to_be_visible()
    context.close()


def test_a_red_run_is_taken_up_again_from_dagster(demo, apart, run):
    assert run("lakeshare", "deliver", "flights", "--day", "2013-01-06", "--nulls", "carrier").code == 0
    assert "expect_column_values_to_not_be_null__carrier" in apart(run_set_job, FLIGHTS.name, "2013-01-06")
    ref = red_place(run, "2013-01-06")
    clear_nulls(demo, apart, ref)
    before = latest(demo)

    succeeded, steps = apart(reexecute_newest_failure)

    assert succeeded
    assert steps == {"flights_set.flights_audit", "flights_set.flights_publish"}
    assert latest(demo).version == before.version + 1
    gate = run(*CI_GATE)
    assert gate.code == 0, gate.text


def test_a_red_set_can_be_discarded_by_command(demo, run):
    ref = red_place(run, "2013-01-04")  # the demo's own

    assert run("lakeshare", "wap", "discard", ref).code == 0
    assert ref not in run("lakeshare", "wap", "list").text
    # In a process of its own, as a user sees its end.
    unknown = demo.lakeshare("wap", "show", ref)
    assert unknown.code == 1
    assert "lakeshare wap list" in unknown.errors


def test_nessie_is_stopped_once_by_command(demo, run):
    """Last in this file: the tests above use it."""
    assert run("lakeshare", "down").text == "Nessie stopped.\n"
    assert not nessie_status(demo.settings).is_running
    assert run("lakeshare", "down").text == "Nessie was not running.\n"
