"""`lakeshare inventory generate`: list a store now, and leave a report like S3's own."""

from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from lakeshare_pipelines.backup_commands.apps import inventory_app

if TYPE_CHECKING:
    from lakeshare_pipelines.backup.listing.columns import ReportFormat
FORMATS: "dict[str, ReportFormat]" = {"csv": "CSV", "orc": "ORC", "parquet": "Parquet"}

Name = Annotated[
    str | None,
    typer.Argument(
        metavar="[BACKUP]", help="Backup whose source is listed; the only declared one by default."
    ),
]
To = Annotated[
    str,
    typer.Option(
        "--to",
        help="Where the report goes: a path or s3://bucket/prefix/, reached as the backup's `listing.store` "
        "says, else as its source is. Below it, S3's layout.",
    ),
]


@inventory_app.command("generate")
def generate(
    name: Name = None,
    to: To = "",
    file_format: Annotated[
        str, typer.Option("--format", help="csv (which Batch Operations take), orc or parquet.")
    ] = "parquet",
    versions: Annotated[
        bool,
        typer.Option("--versions", help="All versions and delete markers, not the current objects only."),
    ] = False,
    configuration: Annotated[
        str, typer.Option("--id", help="Id of the configuration that the report is said to be of.")
    ] = "lakeshare",
    in_flight: Annotated[int, typer.Option(min=1, max=1024, help="Listing requests at a time.")] = 32,
    with_spark: Annotated[
        bool, typer.Option("--spark", help="Let Spark's tasks list: for hundreds of millions of objects.")
    ] = False,
) -> None:
    """List all objects of a bucket or folder, many ranges of keys at a time, into a report like S3 Inventory's."""
    from lakeshare_pipelines.backup.declared import backup_named
    from lakeshare_pipelines.backup.listing.generator import ReportPlace, generate_report
    from lakeshare_pipelines.backup.listing.own_keys import reached
    from lakeshare_pipelines.settings import LakeSettings
    from lakeshare_pipelines.spark.session import spark_session

    if file_format.lower() not in FORMATS:
        raise typer.BadParameter(f"{file_format!r} is none of csv, orc, parquet", param_hint="--format")
    if not to.startswith(("/", "s3://")):
        raise typer.BadParameter("give an absolute path or s3://bucket/prefix/", param_hint="--to")
    settings = LakeSettings()
    backup = backup_named(settings, name)
    place = ReportPlace(
        backup.source, reached(backup, to), FORMATS[file_format.lower()], versions, configuration
    )
    with ExitStack() as stack:
        spark = (lambda: stack.enter_context(spark_session(settings))) if with_spark else None
        found = generate_report(place, in_flight=in_flight, spark=spark, tell=_to_terminal)
    seconds = (found.scan_ended_at - found.scan_started_at).total_seconds()
    typer.echo(f"{found.location}")
    typer.echo(
        f"{found.rows:,} objects of {found.size_bytes:,} bytes in {found.files} files, {seconds:.1f} s"
    )


def _to_terminal(sentence: str) -> None:
    typer.echo(sentence, err=True)
