"""`lakeshare backup batch-server`: S3 Batch Operations for stores that have none."""

from pathlib import Path
from typing import Annotated

import typer

from lakeshare_pipelines.backup_commands.apps import backup_app

Folder = Annotated[
    Path | None, typer.Option(help="Where jobs are kept; `batch_jobs` in the state folder by default.")
]
Threshold = Annotated[
    int, typer.Option("--threshold-tasks", min=1, help="After so many tasks a job fails if half of them did.")
]
PolicyFolder = Annotated[
    Path | None, typer.Option(help="Folder of `lakeshare backup policies`: judge every task by them.")
]
Unsigned = Annotated[
    bool, typer.Option(help="Serve requests of anybody, not only those signed with the same credentials.")
]


@backup_app.command("batch-server")
def batch_server(
    endpoint: Annotated[str, typer.Option(help="URL of the S3 store whose objects jobs work on.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one, and says which.")] = 8088,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    region: Annotated[
        str | None, typer.Option(help="Region to sign for; boto3's usual one by default.")
    ] = None,
    profile: Annotated[str | None, typer.Option(help="Profile of the AWS configuration files.")] = None,
    folder: Folder = None,
    copy_limit: Annotated[
        int, typer.Option("--copy-limit-bytes", min=1, help="The largest object that a copy takes.")
    ] = 5 * 1024**3,
    threshold: Threshold = 1000,
    in_flight: Annotated[int, typer.Option(min=1, help="Tasks of one job at a time.")] = 64,
    jobs_at_once: Annotated[int, typer.Option(min=1, help="Jobs that are active at a time.")] = 4,
    state_delay: Annotated[
        float, typer.Option("--state-delay-s", min=0, help="Seconds that a job stays in each passing state.")
    ] = 0.0,
    policies: PolicyFolder = None,
    unsigned: Unsigned = False,
) -> None:
    """Serve the job calls of s3control at an S3 store that has no Batch Operations, as AWS would."""
    from lakeshare_pipelines.backup.batch_server.rights import Policies
    from lakeshare_pipelines.backup.batch_server.run import Behaviour
    from lakeshare_pipelines.backup.batch_server.serve import own_keys, serve
    from lakeshare_pipelines.backup.stores import StoreAddress
    from lakeshare_pipelines.settings import LakeSettings

    # Which buckets there are, the jobs say.
    address = StoreAddress(url="s3://jobs", endpoint=endpoint, region=region, profile=profile)
    behaviour = Behaviour(
        copy_limit_bytes=copy_limit,
        threshold_tasks=threshold,
        in_flight=in_flight,
        jobs_at_once=jobs_at_once,
        state_delay_s=state_delay,
        policies=None if policies is None else Policies.load(policies),
    )
    keys = None if unsigned else own_keys(address)
    serve(
        folder or LakeSettings().state_dir / "batch_jobs",
        address,
        behaviour,
        host,
        port,
        lambda url: typer.echo(f"Batch Operations for {endpoint} at {url}"),
        keys,
    )
