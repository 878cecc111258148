"""`lakeshare backup policies`: what the two accounts have to allow, and to deny."""

from pathlib import Path
from typing import Annotated

import typer

from lakeshare_pipelines.backup_commands.apps import backup_app


@backup_app.command("policies")
def policies(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The backup.")],
    runner: Annotated[str, typer.Option(help="ARN of the role or user that runs lakeshare.")],
    to: Annotated[
        Path | None, typer.Option(help="Folder for the JSON files; without it they are printed.")
    ] = None,
    break_glass: Annotated[
        str | None, typer.Option(help="ARN of the role that alone may take protection away.")
    ] = None,
    retention_role: Annotated[
        str | None, typer.Option(help="ARN of the role that sweeps; nobody removes copies without it.")
    ] = None,
    organisation: Annotated[
        str | None, typer.Option(help="Id of the organisation (o-…) whose members alone reach the source.")
    ] = None,
    source_key: Annotated[
        str | None, typer.Option(help="ARN of the KMS key of the source's objects.")
    ] = None,
    target_key: Annotated[
        str | None, typer.Option(help="ARN of the KMS key of the target's objects.")
    ] = None,
    inventory_key: Annotated[
        str | None, typer.Option(help="ARN of the KMS key of inventory reports.")
    ] = None,
) -> None:
    """Write the policies of a backup between two accounts: role, runner, buckets, keys, guard-rails."""
    from lakeshare_pipelines.backup.declared import backup_named
    from lakeshare_pipelines.backup.policies.documents import policy_files
    from lakeshare_pipelines.backup.policies.parties import Parties
    from lakeshare_pipelines.backup.policies.writing import as_json, page, write_policies
    from lakeshare_pipelines.settings import LakeSettings

    backup = backup_named(LakeSettings(), name)
    parties = Parties(
        runner, break_glass, retention_role, organisation, source_key, target_key, inventory_key
    )
    files = policy_files(backup, parties)
    if to is not None:
        for path in write_policies(backup, files, to):
            typer.echo(str(path))
        return
    typer.echo(page(backup, files))
    for one in files:
        typer.echo(f"{one.name}:\n{as_json(one)}")
