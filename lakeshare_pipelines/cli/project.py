"""The commands that begin and feed a project: `lakeshare init` and `lakeshare publish`."""

from importlib.resources import files
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Annotated

import typer

from lakeshare_pipelines.cli.contract import find_contract, list_contracts, load_settings
from lakeshare_server.errors import BadRequest

if TYPE_CHECKING:
    from lakeshare_pipelines.contracts import SetContract
    from lakeshare_pipelines.demo.processes import RunResult
    from lakeshare_pipelines.settings import LakeSettings
    from lakeshare_server.catalog import Catalog

TEMPLATES = {
    "pyproject.toml": "pyproject.toml",
    "definitions.py": "definitions.py",
    ".env": "env",
    ".gitignore": "gitignore",
    "README.md": "README.md",
    "dagster_home/dagster.yaml": "dagster.yaml",
    "tests/test_contracts.py": "test_contracts.py",
    ".github/workflows/lakeshare.yaml": "workflow.yaml",
}
"""The files of a project, with their templates in `templates/`."""


def init(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="The project; this folder by default.")
    ] = Path(),
    prepare: Annotated[
        bool, typer.Option(help="Fetch Spark's jars, if they are not in the cache yet.")
    ] = True,
) -> None:
    """Make a project: contracts, settings, a Dagster code location, a test, a CI workflow, a README.

    Files that exist are not replaced: the command refuses a folder with one of its own files.

    Example: lakeshare init shop
    """
    made = write_project(folder)
    typer.echo(f"made in {folder.resolve().name}/: contracts/, {', '.join(made)}")
    if prepare:
        _prepare(folder)
    typer.echo("next: lakeshare contract draft data.csv --share NAME")


def write_project(folder: Path) -> list[str]:
    """Writes the files of a project; returns their paths below the folder.

    Raises:
        BadRequest: the folder holds some of them, or cannot be made; nothing is written.
    """
    from lakeshare_pipelines.ingest.draft import to_words
    from lakeshare_pipelines.settings import SHORT_RUNS

    taken = [name for name in TEMPLATES if (folder / name).exists()]
    if taken:
        hint = f"It holds {', '.join(taken)}, which would be replaced: give an empty folder, or move them."
        raise BadRequest("FOLDER", str(folder), hint)
    values = {"name": to_words(folder.resolve().name).replace("_", "-") or "lake", "short_runs": SHORT_RUNS}
    templates = files("lakeshare_pipelines") / "cli" / "templates"
    try:
        (folder / "contracts").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        hint = f"It cannot be made ({error.strerror}); give a folder."
        raise BadRequest("FOLDER", str(folder), hint) from error
    for name, template in TEMPLATES.items():
        text = Template((templates / f"{template}.template").read_text(encoding="utf-8")).substitute(values)
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return list(TEMPLATES)


def _prepare(folder: Path) -> None:
    """Finds Java and fetches the jars; what is missing is reported, and the project stays."""
    from lakeshare_pipelines.errors import DownloadError, JavaError
    from lakeshare_pipelines.settings import LakeSettings
    from lakeshare_pipelines.spark.jars import ensure_jars, find_java
    from lakeshare_pipelines.spark.session import list_session_jars

    settings = LakeSettings(_env_file=folder / ".env")
    try:
        java = find_java("spark", settings)
        jars = ensure_jars(settings, list_session_jars(settings))
    except (JavaError, DownloadError) as error:
        typer.secho(f"not ready yet: {error}", fg=typer.colors.YELLOW)
        typer.echo("`lakeshare doctor` shows what is missing")
    else:
        typer.echo(f"ready: Java {java.version}, {len(jars)} jars")


def publish(
    set_names: Annotated[
        list[str], typer.Argument(metavar="SET...", help="Sets of the contracts, in the order of their runs.")
    ],
    on: Annotated[
        list[Path] | None,
        typer.Option("--on", help="A file to deliver first; repeat for more. They replace the delivery."),
    ] = None,
    partition: Annotated[
        str | None,
        typer.Option(
            help="The partition to publish, as the day of sets that arrive by day; or FIRST...LAST."
        ),
    ] = None,
    pin: Annotated[
        list[str] | None,
        typer.Option(
            "--pin",
            metavar="TABLE@NUMBER",
            help="Read an input at this publication, not at the newest; repeat.",
        ),
    ] = None,
    allow_late: Annotated[
        bool, typer.Option("--allow-late", help="Publish it though its lateness window is over.")
    ] = False,
) -> None:
    """Stage, audit and publish sets, each in one Dagster run, and apply the shares that the contracts declare.

    A set of files publishes its delivery. Others read their sources, or what they are made of.
    Exit code 1 if the audit stops one, and those after it do not run; `lakeshare wap show` shows why.

    Example: lakeshare publish orders --on orders.csv

    Example: lakeshare publish silver gold --partition 2024-03-01
    """
    from lakeshare_pipelines.wap.inputs import parse_pins

    for option, given in (("--on", on), ("--pin", pin)):
        if given and len(set_names) > 1:
            raise BadRequest(option, str(given[0]), "It belongs to one set: publish that one by itself.")
    parse_pins(pinned := ", ".join(pin or ()))
    settings, sets = load_settings(), [find_contract(name) for name in dict.fromkeys(set_names)]
    asked = [(contract, _list_keys(contract, partition)) for contract in sets]
    for contract, keys in asked:
        _deliver(settings, contract, keys, on or [], allow_late=allow_late)
    are_published = all(
        _publish_partitions(settings, contract, keys, pinned=pinned, allow_late=allow_late)
        for contract, keys in asked
    )
    raise typer.Exit(0 if are_published else 1)


def _list_keys(contract: "SetContract", partition: str | None) -> list[str]:
    """The keys of `partition`, which may be a range; raises `BadRequest` or `DeliveryError`."""
    from lakeshare_pipelines.ingest.delivery import require_partition

    kind = contract.partitioning
    if partition is None:
        if kind.is_whole:
            return ["all"]
        hint = f"Set {contract.name} arrives by {kind.noun}: give it, as {kind.example}."
        raise BadRequest("--partition", "not given", hint)
    first, dots, last = partition.partition("...")
    for key in (first, last) if dots else (first,):
        require_partition(contract, key)
    if not dots:
        return [first]
    try:
        return list(kind.list_keys(first, last))
    except ValueError as error:
        hint = f"Give the first and the last {kind.noun} of a range, in this order."
        raise BadRequest("--partition", partition, hint) from error


def _deliver(
    settings: "LakeSettings", contract: "SetContract", keys: list[str], files: list[Path], *, allow_late: bool
) -> None:
    """Puts files into landing, and requires a delivery for each key, if the set takes deliveries."""
    from lakeshare_pipelines.ingest import find_delivery
    from lakeshare_pipelines.ingest.delivery import name_files, require_in_time
    from lakeshare_pipelines.ingest.landing import open_landing
    from lakeshare_pipelines.wap.evolution import require_allowed_changes
    from lakeshare_pipelines.wap.stage import open_ledger

    if not contract.takes_deliveries:
        if files:
            raise BadRequest("--on", str(files[0]), f"Set {contract.name} takes no deliveries: leave it out.")
        return
    if not allow_late:
        require_in_time(contract, keys)
    if files:
        if len(keys) > 1:
            raise BadRequest("--on", str(files[0]), "Files are the delivery of one partition: give one.")
        with open_ledger(settings) as ledger:
            # Before the files of an earlier delivery are replaced.
            require_allowed_changes(ledger, contract)
        open_landing(settings).replace(contract.name, keys[0], name_files(contract, files))
    for key in keys:
        find_delivery(settings, contract, key)


def _publish_partitions(
    settings: "LakeSettings", contract: "SetContract", keys: list[str], *, pinned: str, allow_late: bool
) -> bool:
    """Runs the set's job in this process; prints verdicts and numbers, and returns whether it was published."""
    from lakeshare_pipelines.defs.wap import (
        ALLOW,
        INPUTS_TAG,
        LATE_TAG,
        add_dynamic_partitions,
        make_partition_key,
    )
    from lakeshare_pipelines.demo import processes
    from lakeshare_server.catalog import open_catalog

    processes.use_dagster_home(settings.state_dir)
    partitions = [] if contract.partitioning.is_whole else keys
    tags = ({LATE_TAG: ALLOW} if allow_late else {}) | ({INPUTS_TAG: pinned} if pinned else {})
    title = f"{contract.name} {keys[0]}" + (f"...{keys[-1]}" if len(keys) > 1 else "")
    with processes.open_instance() as instance:
        reporter = processes.ProgressReporter()
        add_dynamic_partitions(instance, contract, partitions)
        dagster_keys = [make_partition_key(contract, key) for key in partitions]
        ran = processes.launch_run(reporter, instance, f"publish_{contract.name}", title, dagster_keys, tags)
    if not ran.succeeded:
        for line in _explain_failure(settings, ran):
            typer.echo(line)
        return False
    catalog = open_catalog(settings.catalog_url)
    _print_result(catalog, contract, ran)
    _apply_shares(catalog)
    return True


def _print_result(catalog: "Catalog", contract: "SetContract", ran: "RunResult") -> None:
    from lakeshare_server.catalog import Ledger

    for line in ran.checks:
        typer.echo(f"  {line}")
    unchanged = "this delivery is in force already" if contract.takes_deliveries else "nothing is new"
    for table in contract.tables:
        publication = Ledger(catalog).latest(table.name)
        if publication is not None:
            remark = "" if publication.run_id == ran.run_id else f", as before: {unchanged}"
            typer.echo(f"{table.name} is publication {publication.version}: {publication.rows} rows{remark}")


def _explain_failure(settings: "LakeSettings", ran: "RunResult") -> list[str]:
    """The verdicts of a red audit with the staging location that was kept, or the error of the run."""
    from lakeshare_pipelines.wap.stage import format_verdicts
    from lakeshare_pipelines.wap.staged import list_attempts, open_lake_without_spark

    attempts = list_attempts(open_lake_without_spark(settings))
    for attempt in attempts:
        if attempt.staged.run_id == ran.run_id and attempt.verdicts is not None:
            shown = f"nothing was published; lakeshare wap show {attempt.staged.ref} shows this again"
            return [*format_verdicts(attempt.verdicts), shown]
    return [*ran.errors, f"run {ran.run_id} failed; nothing was published"]


def _apply_shares(catalog: "Catalog") -> None:
    from lakeshare_pipelines.share.shares import apply_declared_shares

    difference = apply_declared_shares(catalog, list_contracts())
    for added in difference.added:
        typer.echo(f"shared: {added}")
    for removed in difference.removed:
        typer.echo(f"not shared any more: {removed}")
