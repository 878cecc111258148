"""Our side: tables published, or followed, in a state folder of the benchmark's own, and a recipient who reads them."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from lakeshare_server.catalog import (
    Catalog,
    DeclaredShare,
    Ledger,
    NewPublication,
    Recipients,
    SharedTable,
    apply_shares,
    open_catalog,
)
from lakeshare_server.settings import ServerSettings
from lakeshare_server.tables import read_delta, write_index

SHARE = SCHEMA = RECIPIENT = "bench"


@dataclass(frozen=True)
class Provided:
    """A state folder that shares tables, and the token of the one who may read them."""

    state_dir: Path
    token: str

    @property
    def environment(self) -> dict[str, str]:
        """What a server over the folder is started with."""
        return {**os.environ, "LAKESHARE_STATE_DIR": str(self.state_dir)}


def publish(state_dir: Path, locations: dict[str, Path]) -> Provided:
    """Publish tables, each under its name: what they have is read and indexed now."""
    settings = ServerSettings(state_dir=state_dir)
    catalog = open_catalog(settings.catalog_url)
    Ledger(catalog).append([_publication(settings, name, at) for name, at in locations.items()])
    return Provided(state_dir, _share(catalog, list(locations)))


def follow(state_dir: Path, locations: dict[str, Path]) -> Provided:
    """Follow tables, each under its name: nothing is read until somebody asks."""
    catalog = open_catalog(ServerSettings(state_dir=state_dir).catalog_url)
    environment = Provided(state_dir, "").environment
    for name, location in locations.items():
        words = ["table", "follow", str(location), "--as", f"{SCHEMA}.{name}"]
        subprocess.run(
            [sys.executable, "-m", "lakeshare_server", *words],
            env=environment,
            check=True,
            stdout=subprocess.DEVNULL,
        )
    return Provided(state_dir, _share(catalog, list(locations)))


def can_follow() -> bool:
    """Whether this server follows tables at all."""
    from lakeshare_server.commands import commands

    return any(group.name == "table" for group in commands.registered_groups)


def table_path(name: str) -> str:
    """Where a table is below the protocol's root."""
    return f"shares/{SHARE}/schemas/{SCHEMA}/tables/{name}"


def _share(catalog: Catalog, names: list[str]) -> str:
    shared = tuple(SharedTable(SCHEMA, name, f"{SCHEMA}.{name}") for name in names)
    apply_shares(catalog, [DeclaredShare(SHARE, shared)])
    token = Recipients(catalog).add(RECIPIENT, [SHARE])[1]
    catalog.close()
    return token


def _publication(settings: ServerSettings, name: str, location: Path) -> NewPublication:
    snapshot = read_delta(str(location))
    index = write_index(snapshot, settings.index_dir)
    return NewPublication(
        table=f"{SCHEMA}.{name}",
        set_name=SCHEMA,
        format="delta",
        location=snapshot.location,
        table_id=snapshot.table_id,
        delta_version=snapshot.version,
        schema_string=snapshot.schema_string,
        rows=index.rows,
        files=index.files,
        size_bytes=index.size_bytes,
        index_digest=index.digest,
        contract_digest="",
        verdicts={},
        run_id="bench",
        partition="all",
    )
