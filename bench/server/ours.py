"""Our side: tables published, or followed, in a state folder of the benchmark's own, and a recipient who reads them."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow.compute as pc

from bench.server.urls import S3_ENVIRONMENT, S3_ROOT
from lakeshare_server.catalog import (
    Catalog,
    DeclaredShare,
    FollowedTables,
    Ledger,
    NewPublication,
    SharedTable,
    apply_shares,
    open_catalog,
)
from lakeshare_server.settings import ServerSettings
from lakeshare_server.tables import TableSnapshot, describe_index, read_delta, write_index
from tests.builders.recipients import Recipients

SHARE = SCHEMA = RECIPIENT = "bench"
ON_S3 = "_s3"
CHECK_EVERY_S = 10.0


@dataclass(frozen=True)
class Provided:
    """A state folder that shares tables, and the token of the one who may read them."""

    state_dir: Path
    token: str

    @property
    def environment(self) -> dict[str, str]:
        """What a server over the folder is started with."""
        return {**os.environ, **S3_ENVIRONMENT, "LAKESHARE_STATE_DIR": str(self.state_dir)}


def publish(state_dir: Path, locations: dict[str, Path], also_on_s3: str | None = None) -> Provided:
    """Publish tables, each under its name: what they have is read and indexed now.

    One may be published a second time, as if its files were on S3: their URLs are signed another way.
    """
    settings = ServerSettings(state_dir=state_dir)
    catalog = open_catalog(settings.catalog_url)
    publications, on_s3 = [], [] if also_on_s3 is None else [also_on_s3 + ON_S3]
    for name, location in locations.items():
        snapshot = read_delta(str(location))
        publications.append(new_publication(settings, name, snapshot))
        if name == also_on_s3:
            publications.append(new_publication(settings, name + ON_S3, _as_if_on_s3(snapshot)))
    Ledger(catalog).append(publications)
    return Provided(state_dir, _share(catalog, [*locations, *on_s3]))


def follow(state_dir: Path, locations: dict[str, Path]) -> Provided:
    """Follow tables, each under its name: nothing is read until somebody asks."""
    catalog = open_catalog(ServerSettings(state_dir=state_dir).catalog_url)
    for name, location in locations.items():
        FollowedTables(catalog).add(f"{SCHEMA}.{name}", str(location), CHECK_EVERY_S, 0)
    return Provided(state_dir, _share(catalog, list(locations)))


def table_path(name: str) -> str:
    """Where a table is below the protocol's root."""
    return f"shares/{SHARE}/schemas/{SCHEMA}/tables/{name}"


def _share(catalog: Catalog, names: list[str]) -> str:
    shared = tuple(SharedTable(SCHEMA, name, f"{SCHEMA}.{name}") for name in names)
    apply_shares(catalog, [DeclaredShare(SHARE, shared)])
    token = Recipients(catalog).add(RECIPIENT, [SHARE])[1]
    catalog.close()
    return token


def _as_if_on_s3(snapshot: TableSnapshot) -> TableSnapshot:
    location = f"{S3_ROOT}/{Path(snapshot.location).name}"
    files = snapshot.files
    paths = pc.replace_substring(files.column("path"), snapshot.location, location, max_replacements=1)
    place = files.schema.get_field_index("path")
    return replace(snapshot, location=location, files=files.set_column(place, "path", paths))


def new_publication(settings: ServerSettings, name: str, snapshot: TableSnapshot) -> NewPublication:
    """The publication of a table as it was read, with its index."""
    index = write_index(snapshot, settings.index_dir)
    return NewPublication(
        table=f"{SCHEMA}.{name}",
        set_name=SCHEMA,
        format="delta",
        delta_version=snapshot.version,
        **describe_index(index.header),
        index_digest=index.digest,
        contract_digest="",
        verdicts={},
        run_id="bench",
        partition="all",
    )
