"""The commands of `lakeshare contract`: check, show and compare contracts, draft one from data, test one on files."""

import logging
import re
import shutil
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from lakeshare_pipelines.errors import ContractError
from lakeshare_server.errors import BadRequest
from lakeshare_server.lazy import LazyModule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame

    from lakeshare_pipelines import contracts
    from lakeshare_pipelines.ingest.profile import Sample
    from lakeshare_pipelines.settings import LakeSettings
    from lakeshare_pipelines.wap.evolution import Evolution
    from lakeshare_pipelines.wap.staged import Lake
    from lakeshare_server import catalog as catalogs
else:
    catalogs = LazyModule("lakeshare_server.catalog")
    contracts = LazyModule("lakeshare_pipelines.contracts")

contract_app = typer.Typer(help="Contracts: the YAML that describes a set.", no_args_is_help=True)

ContractFile = Annotated[Path, typer.Argument(metavar="CONTRACT", help="The YAML file of a contract.")]


@contract_app.command("check")
def check(
    paths: Annotated[list[Path] | None, typer.Argument(help="Files; the configured ones by default.")] = None,
) -> None:
    """Load contracts, import their transforms and expectations, compare them with what is published, and report errors.

    Breaking changes need a new major version, and changed tables another name; other changes a minor version or patch.
    Inputs of other sets are checked without PATHS only.
    """
    from lakeshare_pipelines.wap.checks import require_expectations
    from lakeshare_pipelines.wap.evolution import raise_first, require_version
    from lakeshare_pipelines.wap.inputs import load_transforms

    refusals: list[ContractError] = []
    for contract in [contracts.load_contract(path) for path in paths] if paths else list_contracts():
        load_transforms(contract)
        require_expectations(contract)
        evolution = find_published_changes(contract)
        try:
            if evolution is not None:
                require_version(evolution)
        except ContractError as refusal:
            refusals.append(refusal)
            continue
        tables = ", ".join(table.name for table in contract.tables)
        typer.echo(f"ok  {contract.name} {contract.version} ({contract.path.name}): {tables}")
        if evolution is not None:
            typer.echo(
                f"    {evolution.published.version} is published; changes since: {len(evolution.changes)}"
            )
            for change in evolution.changes:
                typer.echo(f"    {change}")
    raise_first(refusals)


@contract_app.command("show")
def show(
    set_name: Annotated[str, typer.Argument(metavar="SET", help="A contract's name.")],
    published: Annotated[
        bool, typer.Option("--published", help="Print the text of the contract that is published.")
    ] = False,
) -> None:
    """Describe a set, or print the contract of its newest publication.

    Example: lakeshare contract diff <(lakeshare contract show shop --published) contracts/shop.yaml
    """
    from lakeshare_pipelines.contracts.model import describe

    if published:
        typer.echo(read_published_text(set_name), nl=False)
    else:
        typer.echo(describe(find_contract(set_name)))


def read_published_text(set_name: str) -> str:
    """Reads the contract of the newest publication of a set; raises `BadRequest` if there is no record of it."""
    catalog = catalogs.open_existing_catalog(load_settings().catalog_url)
    recorded = None if catalog is None else catalogs.Ledger(catalog).published_contract(set_name)
    if recorded is None:
        hint = "The catalog has no contract of a publication of this set; run it once."
        raise BadRequest("SET", set_name, hint)
    return recorded.text


@contract_app.command("diff")
def diff(
    old: Annotated[Path, typer.Argument(metavar="OLD", help="The contract's file as it was.")],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="The contract's file as it is to be.")],
) -> None:
    """List the changes between two versions of a contract, with their class: breaking, minor or patch.

    Exit code 1 if a change is breaking and the major version did not grow.

    Example: lakeshare contract diff <(git show main:contracts/orders.yaml) contracts/orders.yaml
    """
    from lakeshare_pipelines.contracts.difference import (
        compare_contracts,
        find_level,
        find_missing_version,
        has_new_major_version,
    )

    before, after = contracts.load_contract(old, None), contracts.load_contract(new, None)
    changes = compare_contracts(before, after)
    level, is_new_major = find_level(changes), has_new_major_version(before, after)
    needed = find_missing_version(before, after, level)
    for change in changes:
        typer.echo(str(change))
    counts = ", ".join(
        f"{sum(change.level == kind for change in changes)} {kind}" for kind in ("breaking", "minor", "patch")
    )
    remark = "" if needed is None else f": give it version {needed} or higher"
    typer.echo(f"{counts} changes; version {before.version} → {after.version}{remark}")
    raise typer.Exit(1 if level == "breaking" and not is_new_major else 0)


@contract_app.command("draft")
def draft(
    data: Annotated[
        list[str],
        typer.Argument(
            metavar="FILES|TABLE|QUERY",
            help="Files, a glob or a folder (CSV, JSON, XML, Parquet, ORC or Avro), a Delta or Iceberg table (its "
            "location, or schema.table), or a Spark SQL query.",
        ),
    ],
    name: Annotated[str | None, typer.Option(help="Name of the set; by default that of the table.")] = None,
    table_format: Annotated[
        Literal["delta", "iceberg"], typer.Option("--format", help="Format of the published table.")
    ] = "delta",
    share: Annotated[str | None, typer.Option(help="Declare that the table is in this share.")] = None,
    whole: Annotated[
        bool, typer.Option("--whole", help="Read text files of more than 128 MiB whole, not parts of them.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="File to write, - for the terminal; NAME.yaml in LAKESHARE_CONTRACTS_DIR."
        ),
    ] = None,
) -> None:
    """Draft a contract from data: types, keys, empty values, sets of values, ranges, personal data.

    Comments in the file give the reason for each guess. Guessed rules are warnings.

    Example: lakeshare contract draft orders.csv --share partners
    """
    from lakeshare_pipelines.ingest.draft import draft_contract, render

    report = partial(typer.echo, err=True)
    report("starting Spark …")
    with open_sample(data, whole=whole) as sample:
        drafted = draft_contract(sample, table_format=table_format, set_name=name, share=share, report=report)
    text = render(drafted)
    if output == Path("-"):
        typer.echo(text, nl=False)
        return
    folder = load_settings().contracts_dir or Path()
    path = write_contract(output or folder / f"{drafted.set_name}.yaml", text)
    kinds = {"primary key": [column.name for column in drafted.columns if column.is_key]}
    kinds["personal data"] = [column.name for column in drafted.columns if column.pii]
    found = "; ".join(f"{kind}: {', '.join(names) or 'none found'}" for kind, names in kinds.items())
    shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    typer.echo(f"{shown}: table {drafted.set_name}.{drafted.table}, {len(drafted.columns)} columns; {found}")


def write_contract(path: Path, text: str) -> Path:
    """Writes a contract that loads to a new file.

    Raises:
        BadRequest: there is such a file, or it cannot be made.
        ContractError: the contract does not load; nothing is written.
    """
    if path.exists():
        hint = "Give another file with --output, compare it with --output -, or remove it."
        raise BadRequest("--output", str(path), f"There is such a file. {hint}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadRequest("--output", str(path), f"No file can be made there: {error.strerror}.") from error
    try:
        contracts.load_contract(path)
    except ContractError:
        path.unlink()
        raise
    return path


QUERY = re.compile(r"\s*(select|with|from|values)\b.*\s", re.IGNORECASE | re.DOTALL)
TABLE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*){1,2}")


@contextmanager
def open_sample(data: list[str], *, whole: bool) -> "Iterator[Sample]":
    """Opens files, a table or a query for a draft, with a Spark session for the block."""
    from lakeshare_pipelines.ingest.profile import read_files, read_sql
    from lakeshare_pipelines.wap.staged import open_lake

    [first, *others] = data
    with TemporaryDirectory() as folder, open_lake(load_settings()) as lake:
        if not others and QUERY.match(first) and not Path(first).exists():
            title = " ".join(first.split())
            yield read_sql(lambda: lake.spark.sql(first), f"the query {title}", "query")
        elif not others and (read := _find_table(lake, first)) is not None:
            yield read_sql(read, f"table {first}", first.rstrip("/").replace("/", ".").rpartition(".")[2])
        else:
            paths = [path for text in data for path in fetch_objects(lake, text, Path(folder))]
            yield read_files(lake.spark, paths, None if whole else Path(folder))


def _find_table(lake: "Lake", name: str) -> "Callable[[], DataFrame] | None":
    """Reads a Delta or Iceberg table by its location, or by its name in the lake or a catalog; None for files."""
    from lakeshare_pipelines.ingest.delivery import find_suffix

    location = name.rstrip("/") if "://" in name else str(Path(name).expanduser().absolute())
    for table_format, folder in (("delta", "_delta_log"), ("iceberg", "metadata")):
        if ("://" in name or Path(name).is_dir()) and any(lake.stores.list(f"{location}/{folder}")):
            return partial(lake.spark.read.format(table_format).load, location)
    if Path(name).exists() or "://" in name or not TABLE.fullmatch(name):
        return None
    published = catalogs.Ledger(catalogs.open_catalog(lake.settings.catalog_url)).latest(name)
    if published is not None and published.format == "delta":
        return partial(lake.spark.read.format("delta").load, published.location)
    if find_suffix(name) is not None:
        return None
    return partial(lake.table if name.count(".") == 1 else lake.spark.table, name)


def fetch_objects(lake: "Lake", text: str, folder: Path) -> list[str]:
    """Local paths as they are; copies of objects in a store, in a temporary folder."""
    if "://" not in text:
        return [text]
    from lakeshare_pipelines.ingest.landing import is_data

    found = [each.location for each in lake.stores.list(text.rstrip("/"))] or [text]
    copies = []
    for location in found:
        name = location.rpartition("/")[2]
        if is_data(name):
            with lake.stores.open(location) as opened, (folder / name).open("wb") as copy:
                shutil.copyfileobj(opened, copy)
            copies.append(str(folder / name))
    return copies


@contract_app.command("test")
def run_test(
    contract: ContractFile,
    on: Annotated[list[Path], typer.Option("--on", help="A file to deliver; repeat for more.")],
    partition: Annotated[
        str | None, typer.Option(help="The day of the files, for a set that arrives by day.")
    ] = None,
) -> None:
    """Ingest and audit files in a temporary lake, and print the verdicts. Nothing is published.

    Exit code 1 if a check of severity error fails.

    Example: lakeshare contract test contracts/orders.yaml --on orders.csv
    """
    from lakeshare_pipelines.spark.session import spark_session
    from lakeshare_pipelines.wap.audit import audit_files, open_trial_lake
    from lakeshare_pipelines.wap.stage import format_verdicts

    loaded, settings = contracts.load_contract(contract), load_settings()
    if not loaded.partitioning.is_whole and partition is None:
        parts, one = loaded.partitioning.noun, loaded.partitioning.example
        hint = f"Set {loaded.name} arrives by {parts}: give the {parts} of the files, as {one}."
        raise BadRequest("--partition", "not given", hint)
    if settings.spark_mode != "local":
        # Executors on other hosts do not see a temporary folder.
        settings = settings.model_copy(update={"spark_mode": "local", "spark_master": "local[*]"})
    # The verdicts are printed below.
    logging.getLogger("lakeshare_pipelines.wap.audit").setLevel(logging.ERROR)
    typer.echo("starting Spark …", err=True)
    with spark_session(settings) as spark, open_trial_lake(settings, loaded, spark) as lake:
        typer.echo(f"reading and auditing {', '.join(path.name for path in on)} …", err=True)
        staged, verdicts = audit_files(lake, loaded, on, partition or "all")
    for table in staged.tables:
        rejected = f", {table.rejected} rejected" if table.rejected else ""
        typer.echo(f"{table.table}: {table.rows} rows{rejected}")
    typer.echo("\n".join(format_verdicts(verdicts)))
    typer.echo("green: this delivery would be published" if verdicts.green else "red: it would be stopped")
    raise typer.Exit(0 if verdicts.green else 1)


def load_settings() -> "LakeSettings":
    from lakeshare_pipelines.settings import LakeSettings

    return LakeSettings()


def find_published_changes(contract: "contracts.SetContract") -> "Evolution | None":
    """Compares a contract with the published one, if the settings have a catalog; neither creates nor migrates it."""
    from lakeshare_pipelines.wap.evolution import find_evolution

    catalog = catalogs.open_existing_catalog(load_settings().catalog_url)
    if catalog is None:
        return None
    try:
        return find_evolution(catalogs.Ledger(catalog), contract)
    finally:
        catalog.close()


def list_contracts() -> "tuple[contracts.SetContract, ...]":
    """Loads the contracts of the settings."""
    return contracts.load_contracts(load_settings().contracts_dir)


def find_contract(set_name: str) -> "contracts.SetContract":
    known = {contract.name: contract for contract in list_contracts()}
    if set_name not in known:
        message = f"there is no set {set_name!r}, only {', '.join(known)}"
        raise typer.BadParameter(message, param_hint="SET")
    return known[set_name]
