"""`lakeshare backup jobs`: the S3 Batch Operations jobs of a point: look, confirm, hurry, cancel."""

from typing import TYPE_CHECKING, Annotated

import typer

from lakeshare_pipelines.backup_commands.apps import backup_app

if TYPE_CHECKING:
    from lakeshare_pipelines.backup.copy.aws_batch import AwsBatchEngine
    from lakeshare_pipelines.backup.copy.batch.jobs import BatchJob
    from lakeshare_pipelines.backup.copy.engine import CopyTask


@backup_app.command("jobs")
def jobs(
    name: Annotated[str, typer.Argument(metavar="BACKUP", help="A declared backup.")],
    day: Annotated[str, typer.Argument(metavar="DAY", help="The point's day, like 2026-11-20.")],
    confirm: Annotated[bool, typer.Option("--confirm", help="Let jobs begin that wait for it.")] = False,
    priority: Annotated[
        int | None, typer.Option(min=0, max=2**31 - 1, help="Give unfinished jobs another priority.")
    ] = None,
    cancel: Annotated[bool, typer.Option("--cancel", help="End jobs; what is copied stays.")] = False,
) -> None:
    """Show the jobs of S3 Batch Operations that copy a point; confirm, hurry or cancel those that have not ended.

    Example: lakeshare backup jobs lake 2026-11-20 --confirm
    """
    engine, task = _engine_and_task(name, day)
    if priority is not None:
        typer.echo(f"jobs with priority {priority} now: {engine.set_priority(task, priority)}")
    if confirm:
        typer.echo(f"jobs confirmed: {engine.confirm(task)}")
    if cancel:
        engine.cancel(task)
    found = engine.jobs(task)
    if not found:
        typer.echo(f"backup {name} has no jobs for {day}")
    for job in found:
        typer.echo(_line(job))


def _line(job: "BatchJob") -> str:
    why = f" ({'; '.join(job.reasons)})" if job.reasons else ""
    failed = f", {job.failed} failed" if job.failed else ""
    told = f"{job.succeeded} of {job.objects} objects of {job.bucket}{failed}"
    return f"{job.job_id or '(not made)'}  {job.status}{why}: {told}"


def _engine_and_task(name: str, day: str) -> "tuple[AwsBatchEngine, CopyTask]":
    from lakeshare_pipelines.backup.copy.aws_batch import AwsBatchEngine
    from lakeshare_pipelines.backup.declared import backup_named
    from lakeshare_pipelines.backup.making import Making
    from lakeshare_pipelines.errors import BackupError
    from lakeshare_pipelines.settings import LakeSettings

    settings = LakeSettings()
    backup = backup_named(settings, name)
    try:
        return AwsBatchEngine(backup), Making(settings, backup, day, owner="").task()
    except ValueError as error:
        raise BackupError(f"day {day!r}", "it is no day", "Give one like 2026-11-20.") from error
