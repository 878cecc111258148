"""Random metadata folders of Iceberg tables: the current file is read, through every API, or the folder is refused.

The files of a folder tell different states of one table, so an older state that is served as the newest has other rows.
What has to be read is worked out here, from how the folder was drawn: a hint decides, else the highest number that one
file of one catalog has; what cannot be ranked is refused, and one metadata file can be followed instead.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import httpx
import pyarrow as pa
import pytest

from lakeshare_server.errors import LakeshareError, TableFilesMissing, Unserveable
from lakeshare_server.settings import ServerSettings
from lakeshare_server.storage import Stores
from lakeshare_server.versions.metadata_sources import IN_ORDER_OF_NAMES, MetadataFolder, Pointer
from tests.builders.campaign import campaign_size
from tests.builders.iceberg_rest import rest_catalog
from tests.builders.protocol_reader import ProtocolReader
from tests.builders.random_metadata_folder import FOREIGN, File, Folder, change, draw_folder
from tests.builders.sharing import Provider, Running, a_provider, a_server

SERVED = campaign_size(in_ci=8, in_campaign=2_000)
LOOKED_AT = campaign_size(in_ci=200, in_campaign=20_000)
IN_A_SHARE, CHANGES, STATES = 100, 4, 12
SEED = 20_261_122


@dataclass(frozen=True)
class Known:
    """What a process knows of a folder: the file that it found last, and the hint's number if that has led there."""

    file: File | None = None
    number: int | None = None

    def later(self, folder: Folder) -> tuple[File | None, "Known"]:
        """The file that its next look has to find, and what it knows then."""
        number = None if folder.hint is None else folder.hint.number
        is_there = self.file is not None and folder.files.get(self.file.name) == self.file
        is_led = number is not None and folder.first(f"v{number}") is not None
        if self.file is not None and is_there and number is not None and number == self.number:
            # It goes on from there, as Java's classes do.
            chain, is_led = [self.file, *folder.following(self.file.number + 1)], True
            found = None if folder.of("catalog") else chain[-1]
        elif self.file is not None and is_there and self.file.kind == "catalog":
            found = self._seen(folder, f"{self.file.number:05d}-").current()
        else:
            found = folder.current()
        if found is None:
            return None, Known(self.file)
        return found, Known(found, number if is_led and found.kind == "hadoop" else None)

    def _seen(self, folder: Folder, since: str) -> Folder:
        """The folder without names that have no number and come before those that a look goes through."""
        is_named = folder.hint is not None and folder.hint.name is not None
        if self.file is None or self.file.number >= IN_ORDER_OF_NAMES or is_named:
            return folder
        files = {
            name: one for name, one in folder.files.items() if one.kind != "unordered" or one.name > since
        }
        return Folder(folder.states, files, folder.hint)


@pytest.mark.campaign
@pytest.mark.timeout(campaign_size(in_ci=300, in_campaign=14_400))
def test_every_look_finds_the_current_file_or_refuses_the_folder(tmp_path: Path) -> None:
    """The first look of a process, and later looks of one that knows what the folder had before."""
    stores = Stores(ServerSettings(_env_file=None, state_dir=tmp_path / "state"))
    root, contents = tmp_path / "t", [b"state %d" % state for state in range(STATES)]
    outcomes: Counter[str] = Counter()
    differences: list[str] = []
    for number in range(LOOKED_AT):
        random = Random(SEED + number)
        folder, pointer, known = draw_folder(random, STATES), None, Known()
        folder.write(root, contents)
        process = MetadataFolder(stores, str(root))
        for step in range(1 + CHANGES):
            wanted, (of_process, known) = folder.current(), known.later(folder)
            fresh, _ = look(MetadataFolder(stores, str(root)), None)
            found, seen = look(process, pointer)
            pointer = seen or pointer
            outcomes[f"{'later' if step else 'first'} looks, {'refused' if found is None else 'found'}"] += 1
            for when, name, file in (("now", fresh, wanted), ("before", found, of_process)):
                if name != (file and file.name):
                    what = f"seed {SEED + number}, look {step} of a process of {when}"
                    differences.append(f"{what}: {name}, not {file}: {folder}")
            before, folder = folder, change(random, folder)
            folder.write(root, contents, before)
    print(json.dumps(outcomes, indent=1, sort_keys=True))
    assert not differences, f"{len(differences)} differences: " + "\n".join(differences)
    for when in ("first", "later"):
        assert min(outcomes[f"{when} looks, found"], outcomes[f"{when} looks, refused"]) > LOOKED_AT / 10


def look(process: MetadataFolder, known: Pointer | None) -> tuple[str | None, Pointer | None]:
    """The name of the file that is found; None where the folder is refused."""
    try:
        found = process.current(known)
    except (Unserveable, TableFilesMissing):
        return None, None
    return found.metadata_location.partition("/metadata/")[2], found


@dataclass(frozen=True)
class Case:
    """A table whose metadata folder was drawn, how it is followed, and what a process then knows."""

    name: str
    root: Path
    random: Random
    folder: Folder
    contents: Sequence[bytes]
    known: Known | None
    """None where one metadata file is followed."""
    state: int


@dataclass(frozen=True)
class Reading:
    """A running server and what its clients need."""

    server: Running
    token: str
    client: httpx.Client
    data: httpx.Client

    @cached_property
    def catalog(self) -> Any:
        """PyIceberg's client of the Iceberg REST API."""
        return rest_catalog(self.server, self.token)


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory) -> Sequence[Mapping[str, Any]]:
    """The metadata of a table after each of its commits: state `i` has one row, the number `i`."""
    from pyiceberg.catalog.memory import InMemoryCatalog

    catalog = InMemoryCatalog("tests", warehouse=tmp_path_factory.mktemp("lake").as_uri())
    catalog.create_namespace("lake")
    rows = [pa.table({"n": pa.array([number], pa.int32())}) for number in range(STATES)]
    table, found = catalog.create_table("lake.t", rows[0].schema), []
    for row in rows:
        table.overwrite(row)
        found.append(json.loads(Path(table.metadata_location.removeprefix("file://")).read_text()))
    return found


def contents_at(root: Path, states: Sequence[Mapping[str, Any]], random: Random) -> list[bytes]:
    """The metadata files of a table of its own in this folder, which shares its data with the others."""
    own = {"location": root.as_uri(), "table-uuid": str(UUID(int=random.getrandbits(128), version=4))}
    return [json.dumps({**state, **own}).encode() for state in states]


@pytest.mark.campaign
@pytest.mark.timeout(campaign_size(in_ci=300, in_campaign=14_400))
@pytest.mark.filterwarnings("ignore")
def test_every_api_serves_the_current_state_or_none(
    tmp_path: Path, states: Sequence[Mapping[str, Any]]
) -> None:
    outcomes: Counter[str] = Counter()
    differences: list[str] = []
    for first in range(0, SERVED, IN_A_SHARE):
        lake = tmp_path / f"lake{first}"
        provider = a_provider(lake, files_also_in=str(tmp_path.parent))
        cases = []
        for number in range(first, min(first + IN_A_SHARE, SERVED)):
            try:
                case = follow(provider, lake / f"t{number}", Random(SEED + number), states, outcomes)
            except AssertionError as error:
                differences.append(f"t{number}: {error}")
            else:
                cases += [] if case is None else [case]
        provider.share(*(f"lake.{case.name}" for case in cases))
        token = provider.recipient()
        with a_server(provider) as server, server.client(token) as client, httpx.Client(timeout=30) as data:
            reading = Reading(server, token, client, data)
            for case in cases:
                try:
                    compare(reading, case, outcomes)
                except AssertionError as error:
                    differences.append(f"{case.name}: {error}")
    print(json.dumps(outcomes, indent=1, sort_keys=True))
    assert not differences, f"{len(differences)} silent differences: " + "\n".join(differences)


def follow(
    provider: Provider,
    root: Path,
    random: Random,
    states: Sequence[Mapping[str, Any]],
    outcomes: Counter[str],
) -> Case | None:
    """Follow the folder, or where that is refused one metadata file in it; None where there is none."""
    folder, contents = draw_folder(random, STATES), contents_at(root, states, random)
    folder.write(root, contents)
    wanted, known = Known().later(folder)
    refusal = None
    try:
        provider.follow_iceberg(f"lake.{root.name}", root)
    except LakeshareError as error:
        refusal = error
    if wanted is not None and wanted.ending != FOREIGN:
        assert refusal is None, f"{folder}: {refusal}"
        outcomes["followed"] += 1
        return Case(root.name, root, random, folder, contents, known, wanted.state)
    assert refusal is not None, f"{folder} is followed"
    outcomes[f"refused: {_reason(refusal)}"] += 1
    files = [one for one in folder.of("hadoop", "catalog", "unordered") if one.ending != FOREIGN]
    if not files:
        return None
    one = random.choice(files)
    provider.follow_iceberg(f"lake.{root.name}", root / "metadata" / one.name)
    outcomes["refused, one file followed instead"] += 1
    return Case(root.name, root, random, folder, contents, None, one.state)


def compare(reading: Reading, case: Case, outcomes: Counter[str]) -> None:
    """Read the table through every API, and again after something has happened to its folder."""
    for api, rows in APIS.items():
        assert rows(reading, case.name) == [case.state], f"{api}, state {case.state}: {case.folder}"
        outcomes[f"{api}: served"] += 1
    if case.known is None:
        return
    folder = change(case.random, case.folder)
    folder.write(case.root, case.contents, case.folder)
    wanted, _ = case.known.later(folder)
    state = None if wanted is None or wanted.ending == FOREIGN else wanted.state
    for api, rows in APIS.items():
        found = rows(reading, case.name)
        assert found == (None if state is None else [state]), f"{api}, state {state} later: {folder}"
        outcomes[f"{api}, later: {'refused' if found is None else 'served'}"] += 1


def _reason(refusal: LakeshareError) -> str:
    """The kind of a refusal, without the names in it."""
    kinds = (
        "have no order", "of a Hadoop catalog and of another one", "which is not there", "no file of its folder",
        "a hint that says", "a hint that gives a number, and", "of number", "no Iceberg table", "is not whole",
    )  # fmt: skip
    return next(kind for kind in kinds if kind in str(refusal))


def by_protocol(reading: Reading, name: str, fmt: Any) -> list[int] | None:
    reader = ProtocolReader(reading.client, f"flights.lake.{name}", fmt, reading.data)
    asked = reading.client.post(f"{reader.path}/query", json={}, headers=reader.headers())
    if asked.status_code != 200:
        assert asked.status_code in (400, 404), asked.text
        return None
    return [json.loads(row)[0] for row in reader.rows(reader.snapshot()).rows]


def by_rest(reading: Reading, name: str) -> list[int] | None:
    from pyiceberg.exceptions import BadRequestError, NoSuchTableError

    try:
        table = reading.catalog.load_table(f"lake.{name}")
    except (BadRequestError, NoSuchTableError):
        return None
    return list(table.scan().to_arrow().column("n").to_pylist())


APIS = {
    "parquet": lambda *given: by_protocol(*given, "parquet"),
    "delta": lambda *given: by_protocol(*given, "delta"),
    "Iceberg REST": by_rest,
}
