"""`lakeshare recipient invite` prints a link, `lakeshare activate` redeems it; a refusal leaves all as it was."""

import json
import re
import stat
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import FileIO
from pathlib import Path
from typing import NamedTuple

import pytest

from lakeshare_server.catalog import states
from lakeshare_server.catalog.states import LinkState
from lakeshare_server.cli import main
from lakeshare_server.cli.recipients import _write_profile
from lakeshare_server.errors import BadRequest
from tests.builders import plain_http
from tests.builders.http_server import listening
from tests.builders.offered_lake import AGREEMENT, OfferedLake, an_offered_lake


class Ended(NamedTuple):
    """A command that ended."""

    code: int
    out: str
    err: str


Run = Callable[..., Ended]


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OfferedLake]:
    with an_offered_lake(tmp_path_factory.mktemp("commands")) as running:
        yield running


@pytest.fixture
def run(
    lake: OfferedLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    monkeypatch.setenv("LAKESHARE_STATE_DIR", str(lake.provider.settings.state_dir))
    monkeypatch.setenv("LAKESHARE_PUBLIC_URL", lake.root)
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> Ended:
        monkeypatch.setattr("sys.argv", ["lakeshare", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return Ended(int(ended.value.code or 0), said.out, said.err)

    return run


def link_in(ended: Ended) -> str:
    assert ended.code == 0, ended.err
    [link] = re.findall(r"^link: (http://\S+/activate/[\w-]{43})$", ended.out, re.MULTILINE)
    return str(link)


def last_link(lake: OfferedLake, name: str) -> LinkState:
    with lake.provider.catalog.reading() as session:
        return states.get_recipient(session, name).links[-1]


def test_a_recipient_is_added_with_a_link_and_activates_itself(
    run: Run, lake: OfferedLake, tmp_path: Path
) -> None:
    words = ("recipient", "add", "acme", "--share", "flights", "--share", "trade", "--comment", "a partner")
    added = run(*words, "--invite", "--days", "30", "--link-days", "7")
    link = link_in(added)
    assert list(tmp_path.iterdir()) == []
    told = last_link(lake, "acme")
    assert ((told.expires_at - told.created_at).days, told.used_at) == (7, None)
    assert f"until {told.expires_at:%Y-%m-%d %H:%M} UTC" in added.out

    activated = run("activate", link)
    assert activated.out.splitlines() == [
        "Harbour Statistics shares with acme:",
        "  flights: flights.lake.flights, flights.lake.cargo_declarations_by_commodity_code_and_country_of_origin",
        "  trade: trade.lake.cargo",
        "profile: acme.share",
    ]
    profile = json.loads((tmp_path / "acme.share").read_text())
    assert stat.S_IMODE((tmp_path / "acme.share").stat().st_mode) == 0o600
    headers = {"Authorization": f"Bearer {profile['bearerToken']}"}
    shares = plain_http.get(f"{profile['endpoint']}/shares", headers=headers).json()["items"]
    assert [share["name"] for share in shares] == ["flights", "trade"]
    assert 29 <= (datetime.fromisoformat(profile["expirationTime"]) - datetime.now(UTC)).days <= 30

    again = run("activate", link, "-o", "again.share")
    assert (again.code, again.out) == (1, "")
    assert "was used on" in again.err
    assert not (tmp_path / "again.share").exists()


def test_a_new_link_ends_the_one_before_and_leaves_tokens_alone(run: Run, lake: OfferedLake) -> None:
    first = link_in(run("recipient", "add", "rotated", "--share", "flights", "--invite"))
    second = link_in(run("recipient", "invite", "rotated"))
    assert "replaced or revoked" in run("activate", first).err
    assert run("activate", second).code == 0
    third = link_in(run("recipient", "invite", "rotated", "--token-days", "1"))
    assert run("activate", third, "-o", "newer.share").code == 0
    with lake.provider.catalog.reading() as session:
        tokens = states.get_recipient(session, "rotated").tokens
    assert [token.is_valid(datetime.now(UTC)) for token in tokens] == [True, True]


def test_a_file_that_is_there_stays_and_the_link_too(run: Run, lake: OfferedLake, tmp_path: Path) -> None:
    link = lake.invited("keeper")
    (tmp_path / "keeper.share").write_text("mine")
    for words in ([], ["-o", "keeper.share"], ["-o", "no/such/folder/x.share"]):
        refused = run("activate", link, *words)
        assert (refused.code, "--output" in refused.err) == (1, True)
    assert (tmp_path / "keeper.share").read_text() == "mine"
    assert last_link(lake, "keeper").used_at is None
    assert run("activate", link, "-o", "other.share").code == 0


def test_an_agreement_is_shown_and_has_to_be_accepted(run: Run, lake: OfferedLake, tmp_path: Path) -> None:
    link = lake.invited("signer", agreement=AGREEMENT)
    refused = run("activate", link)
    assert refused.code == 1
    assert AGREEMENT in refused.out
    assert list(tmp_path.iterdir()) == []
    assert last_link(lake, "signer").used_at is None
    assert run("activate", link, "--accept").code == 0


class NotAServerOfOurs(BaseHTTPRequestHandler):
    """Answers a look as a link does, and everything else in HTML."""

    def do_GET(self) -> None:
        offer = {
            "provider": "p",
            "recipient": "r",
            "fileName": "../../r.share",
            "shares": [],
            "agreement": None,
        }
        self.answer(200, json.dumps(offer) if self.path == "/activate/offered" else "<p>Welcome</p>")

    def do_POST(self) -> None:
        self.answer(502, "<p>Bad gateway</p>")

    def answer(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the test's output is its own."""


def test_what_is_answered_otherwise_is_told_and_leaves_no_file(run: Run, tmp_path: Path) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), NotAServerOfOurs)
    with listening(server):
        root = f"http://127.0.0.1:{server.server_port}"
        for path, said in (
            ("/", "answers 200, and not as a link does"),
            ("/activate/offered", "answers 502"),
        ):
            refused = run("activate", root + path)
            assert (refused.code, said in refused.err) == (1, True), refused.err
    for link in (
        f"{root}/activate/offered",
        f"https://{'a' * 70}.example/activate/x",
        "http://[::1]:x/activate/x",
    ):
        assert "does not answer" in run("activate", link).err
    assert list(tmp_path.iterdir()) == []


def test_a_profile_that_no_disk_takes_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with FileIO("/dev/full", "wb") as file, pytest.raises(BadRequest, match="No space left on device"):
        _write_profile(file, Path("full.share"), {"bearerToken": "only here"})
    assert json.loads(capsys.readouterr().out)["bearerToken"] == "only here"
