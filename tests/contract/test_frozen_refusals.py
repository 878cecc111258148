"""The refusals of bad input: status or exit code, error code and text of each as snapshots, and no change of the state.

The inputs are in `refusals/`, one file for each surface. An input begins in a line of its own; indented lines belong to
the input before. `{{x * 300}}` stands for the text x 300 times, `<folder>` and `<server>` for those of the run, and
`<link bob>` for the activation link of bob. Options stand in front: `[as=auditor; if-match="9"]`,
and `[escaped]` for escapes like `\\udcff`.
The texts of refused contracts are in `tests/unit/pipelines/contracts/test_contract_refusals.py`.
"""

import re
import shlex
from codecs import decode
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from datetime import date
from functools import partial
from importlib.metadata import entry_points
from io import StringIO
from pathlib import Path

import httpx
import pytest
import yaml
from sqlalchemy import text as sql

from lakeshare_pipelines.settings import LakeSettings
from lakeshare_server.access.authentication import write_profile
from lakeshare_server.catalog import DeclaredShare, SharedTable, apply_shares
from lakeshare_server.catalog.credentials import add_admin_key
from lakeshare_server.catalog.declared import apply_files, read_files
from lakeshare_server.catalog.declared.apply import RetiredTable
from lakeshare_server.catalog.sharing import editing
from lakeshare_server.errors import LakeshareError
from lakeshare_server.provider.following import Provider
from lakeshare_server.settings import ServerSettings
from lakeshare_server.sql.grammar import SqlError, StatementRefused
from tests.builders import people
from tests.builders.administration import ROLES
from tests.builders.deletion_vector import inline_descriptor
from tests.builders.lake_tables import IcebergTable
from tests.builders.recipients import expire_token
from tests.builders.sharing import Provider as Publishing
from tests.builders.sharing import a_server
from tests.builders.snapshots import check_snapshot
from tests.builders.sql_sessions import a_lake, a_session
from tests.builders.transcripts import UUID
from tests.builders.written_log import WrittenLog, add, metadata, protocol

[LAKESHARE] = entry_points(group="console_scripts", name="lakeshare")
run_command = LAKESHARE.load()
INPUTS = Path(__file__).with_name("refusals")
OPTIONS = re.compile(r"\[([^]]*)] ")
REPEATED = re.compile(r"\{\{(.+?) \* (\d+)}}")
FILE_NAME = "shares.yaml"
FILES = {
    "other.yaml": "other: []",
    "none.share": "{}",
    "old.share": '{"shareCredentialsVersion": 2, "bearerToken": "x"}',
    "empty.share": '{"shareCredentialsVersion": 1, "bearerToken": ""}',
    "unknown.share": '{"shareCredentialsVersion": 1, "bearerToken": "x", "endpoint": "http://127.0.0.1:1/"}',
    "events.jsonl": "",
    "empty/README.md": "",
    "broken/one/_delta_log/00000000000000000000.json": "{",
    "broken/two/_delta_log/00000000000000000000.json": "{}",
}
# A time of this run; those of the inputs and in examples are written otherwise.
MOMENT = re.compile(
    r"(?<=on )20\d\d-\d\d-\d\d (?:at )?\d\d:\d\d(?::\d\d)?(?:Z| UTC)|20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
)
# What requests write themselves: the audit log, and when credentials were used.
WRITTEN_BY_REQUESTS = re.compile("audit_.*|usage_days|token_uses|allowances|async_queries")


@dataclass(frozen=True)
class BadInput:
    """An input as its file has it; `text` is what is sent."""

    written: str
    text: str
    options: Mapping[str, str]


@dataclass(frozen=True)
class Site:
    """A state folder, the server over it, the tokens of its clients, and what `<folder>` and so on stand for."""

    provider: Provider
    tokens: Mapping[str, str]
    client: httpx.Client
    places: Mapping[str, str]

    def place(self, bad: BadInput) -> BadInput:
        """An input with the places of this run."""
        text = bad.text
        for name, value in self.places.items():
            text = text.replace(name, value)
        return replace(bad, text=text)

    def normalise(self, text: str) -> str:
        """A text without what differs from run to run."""
        for name, value in self.places.items():
            text = text.replace(value, name)
        return UUID.sub("<uuid>", MOMENT.sub("<time>", text))

    def read_state(self) -> dict[str, list[tuple[object, ...]]]:
        """The rows of all tables of the catalog that no request may change."""
        with self.provider.catalog.reading() as session:
            tables = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
            names = session.scalars(sql(tables)).all()
            return {
                name: [tuple(row) for row in session.execute(sql(f"SELECT * FROM {name}"))]
                for name in names
                if not WRITTEN_BY_REQUESTS.fullmatch(name)
            }


# The refusal as text, None if the input is accepted.
Refuse = Callable[[Site, BadInput], str | None]


def read_inputs(surface: str) -> Iterator[BadInput | str]:
    """The inputs of a file, and the titles of their groups."""
    entries: list[str] = []
    for line in (INPUTS / f"{surface}.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith(" ") and entries:
            entries[-1] += f"\n{line}"
        elif line:
            entries.append(line)
    for written in entries:
        if written.startswith("## "):
            yield written
            continue
        text = REPEATED.sub(lambda part: part[1] * int(part[2]), written)
        found = OPTIONS.match(text)
        pairs = found[1].split("; ") if found else []
        options = {name: value for name, _, value in (pair.partition("=") for pair in pairs)}
        text = text[found.end() if found else 0 :]
        yield BadInput(written, decode(text, "unicode_escape") if "escaped" in options else text, options)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("refusals")
    # Responses that wait after many wrong tokens would take most of the time.
    provider = a_lake(folder, public_url=None, port=0, guesses_per_minute=100_000)
    publishing = Publishing(provider.settings, provider.catalog)
    add_tables(publishing, folder)
    # Its version is numbered now, not by the first input that needs it.
    provider.versions.of("lake.vectors").latest()
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    tokens, links = add_shares(provider)
    with ExitStack() as stack:
        environment = stack.enter_context(pytest.MonkeyPatch.context())
        for name in LakeSettings.model_fields | ServerSettings.model_fields:
            environment.delenv(f"LAKESHARE_{name.upper()}", raising=False)
        environment.setenv("LAKESHARE_STATE_DIR", str(provider.settings.state_dir))
        # No command may start Java.
        environment.setenv("LAKESHARE_NESSIE_URI", "http://127.0.0.1:1/api/v2")
        environment.chdir(folder)
        running = stack.enter_context(a_server(publishing))
        write_profile(folder / "bob.share", running.url, tokens["bob"], None)
        root = running.url.removesuffix(provider.settings.endpoint)
        client = stack.enter_context(httpx.Client(verify=False, base_url=root, timeout=30))
        yield Site(provider, tokens, client, {"<folder>": str(folder), "<server>": root, **links})


def add_tables(publishing: Publishing, folder: Path) -> None:
    """Beside the published tables: an Iceberg table, a followed table with deletion vectors, and one without files."""
    table = IcebergTable(folder / "warehouse", people.people(1).schema)
    table.append(people.people(1, 2))
    people.publish(publishing, table)
    log = WrittenLog(folder / "vectors")
    log.commit(protocol(features=("deletionVectors",)), metadata({"delta.enableDeletionVectors": "true"}))
    log.commit(add("p=a/one.parquet", deletionVector=inline_descriptor([0])))
    publishing.follow("lake.vectors", folder / "vectors")
    publishing.follow("lake.gone", folder / "gone")


def add_shares(provider: Provider) -> tuple[dict[str, str], dict[str, str]]:
    """What contracts, statements and files create; returns tokens by name, and links as inputs write them."""
    apply_shares(provider.catalog, [DeclaredShare("declared", (SharedTable("lake", "parts", "lake.parts"),))])
    tokens, links = {}, {}
    for executed in a_session(provider).run((INPUTS / "setup.sql").read_text(encoding="utf-8")):
        for row in executed.result.rows:
            if "token" in executed.result.columns:
                tokens[row[0]] = row[2]
            else:
                links[f"<link {row[0]}>"] = row[1].rpartition("/")[2]
    apply_files(provider.catalog, read_files([INPUTS / "setup.yaml"]), "ann")
    with editing(provider.catalog, "ann") as edit:
        expire_token(edit, tokens["late"])
        return tokens | {role: add_admin_key(edit, role, role)[1] for role in ROLES}, links


def refuse_statement(site: Site, bad: BadInput) -> str | None:
    """Executes SQL; the class of the cause, and the text of the error."""
    try:
        list(a_session(site.provider).run(bad.text, single_transaction="transaction" in bad.options))
    except SqlError as error:
        cause = error.cause if isinstance(error, StatementRefused) else error
        return f"{type(cause).__name__}\n{error}"
    return None


def refuse_declaration(site: Site, bad: BadInput) -> str | None:
    """Applies shares of contracts, `{share: {schema.table: lake's table}}`, where a contract has declared one."""
    shares = [
        DeclaredShare(share, tuple(SharedTable(*path.split(".", 1), table) for path, table in tables.items()))
        for share, tables in yaml.safe_load(bad.text).items()
    ]
    retired = [RetiredTable(bad.options["retired"], date(2999, 1, 1))] if "retired" in bad.options else []
    try:
        apply_shares(site.provider.catalog, shares, retired)
    except LakeshareError as error:
        return f"{type(error).__name__}\n{error}"
    return None


def refuse_command(site: Site, bad: BadInput) -> str | None:
    """Runs a command of either package in this process; its exit code and what it prints."""
    printed = StringIO()
    with pytest.MonkeyPatch.context() as environment, redirect_stderr(printed), redirect_stdout(printed):
        environment.setattr("sys.argv", ["lakeshare", *shlex.split(bad.text)])
        environment.setattr("sys.stdin", StringIO())
        try:
            run_command()
        except SystemExit as ended:
            code = ended.code
    if code == 0:
        return None
    # The width of a box is that of the terminal.
    boxed = " ".join(line.strip("│ ") for line in printed.getvalue().splitlines() if line.startswith("│"))
    return f"exit {code}\n{boxed or printed.getvalue()}"


def refuse_file(site: Site, bad: BadInput) -> str | None:
    """Applies a file of shares."""
    Path(site.places["<folder>"], FILE_NAME).write_text(bad.text, encoding="utf-8")
    return refuse_command(site, replace(bad, text=f"apply -f {FILE_NAME} {bad.options.get('with', '--yes')}"))


def refuse_request(site: Site, bad: BadInput, base: str, usual: str) -> str | None:
    """Sends `METHOD PATH BODY`; the status, the error code and the message. Paths of `/api` and so on are absolute."""
    method, path, *body = bad.text.split(" ", 2)
    headers = dict(bad.options)
    token = site.tokens.get(headers.pop("as", usual))
    if token is not None:
        headers.setdefault("authorization", f"Bearer {token}")
    url = path if path.startswith(("/api/", "/delta-sharing/", "/iceberg/")) else base + path
    response = site.client.request(method, url, headers=headers, content="".join(body).encode())
    if response.status_code < 400:
        return None
    fields = response.json()
    error = fields["error"] if isinstance(fields.get("error"), dict) else fields
    code, message = (
        next(error[name] for name in names if name in error)
        for names in (("error_code", "errorCode", "type", "error"), ("message", "error_description"))
    )
    return f"{response.status_code} {code}\n{message}"


SURFACES: Mapping[str, Refuse] = {
    "sql": refuse_statement,
    "declared": refuse_file,
    "contracts": refuse_declaration,
    "commands": refuse_command,
    "admin_api": partial(refuse_request, base="/api/2.1/opensharing/provider", usual="owner"),
    "sharing": partial(refuse_request, base="/delta-sharing/shares", usual="bob"),
    "iceberg": partial(refuse_request, base="/iceberg/v1/shares", usual="bob"),
}


@pytest.mark.parametrize("surface", SURFACES)
def test_refusals(site: Site, surface: str) -> None:
    before, accepted, lines = site.read_state(), list[str](), list[str]()
    for bad in read_inputs(surface):
        if isinstance(bad, str):
            lines += [bad, ""]
        elif (refusal := SURFACES[surface](site, site.place(bad))) is None:
            accepted.append(bad.written)
        else:
            shown = site.normalise(refusal).strip().splitlines()
            lines += [bad.written, *(f"| {line}".rstrip() for line in shown), ""]
    assert not accepted, "accepted: " + "\n".join(accepted)
    assert site.read_state() == before
    check_snapshot(f"refusals/{surface}.txt", "\n".join(lines))


def test_the_corpus_has_each_input_once() -> None:
    inputs = [
        (surface, bad.written)
        for surface in SURFACES
        for bad in read_inputs(surface)
        if isinstance(bad, BadInput)
    ]
    assert len(set(inputs)) == len(inputs) >= 300
