"""Commands about how recipients get in beside a token of ours, and how much they may ask for."""

from typing import Annotated

import typer

from lakeshare_server.commands.console import open_state_catalog, operator

POLICY = "default"
RecipientName = Annotated[str, typer.Argument(metavar="RECIPIENT", help="The recipient's name.")]


def federate_recipient(
    name: RecipientName,
    issuer: Annotated[
        str | None, typer.Option(help="The recipient's OIDC issuer, as its tokens say it in `iss`.")
    ] = None,
    subject: Annotated[str | None, typer.Option(help="Whose tokens count, as the claim says it.")] = None,
    claim: Annotated[str, typer.Option(help="The claim: sub, or one with groups, like groups.")] = "sub",
    audience: Annotated[
        list[str] | None, typer.Option(help="Whom its tokens are for; repeat for more. One is enough.")
    ] = None,
    policy: Annotated[str, typer.Option(help="The policy's name, where a recipient has several.")] = POLICY,
    drop: Annotated[bool, typer.Option("--drop", help="Take the policy away.")] = False,
) -> None:
    """Let a recipient in with tokens that its own OIDC issuer signs; add it with `--by oidc` first.

    Example: lakeshare recipient federate acme --issuer https://login.acme.example --audience lakeshare --subject job-7
    """
    from lakeshare_server.catalog.sharing import FederationPolicy, drop_policy, editing, put_policy
    from lakeshare_server.errors import BadRequest

    with editing(open_state_catalog(), operator()) as edit:
        if drop:
            drop_policy(edit, name, policy)
            typer.echo(f"{name}: policy {policy} is gone")
            return
        if not (issuer and subject and audience):
            raise BadRequest(
                "--issuer, --subject, --audience", "not given", "Give all three, or --drop to take one away."
            )
        told = put_policy(edit, name, FederationPolicy(
            name=policy, issuer=issuer, subject_claim=claim, subject=subject, audiences=tuple(audience)
        ))  # fmt: skip
    typer.echo(
        f"{name} gets in with tokens of {told.issuer} for {', '.join(told.audiences)}, {claim}={subject}"
    )


def limit_recipient(
    name: RecipientName,
    requests_per_minute: Annotated[int | None, typer.Option(min=1, help="Most requests in a minute.")] = None,
    urls_per_day: Annotated[
        int | None, typer.Option(min=1, help="Most files it gets URLs of in a day (UTC).")
    ] = None,
    bytes_per_day: Annotated[
        int | None, typer.Option(min=1, help="Most bytes of files it gets URLs of in a day (UTC).")
    ] = None,
    usual: Annotated[
        bool, typer.Option("--usual", help="Take back what is not given here: the settings' limits hold.")
    ] = False,
) -> None:
    """Say how much a recipient may ask for, in the place of the server's settings; without an option, show it."""
    from lakeshare_server.catalog.sharing import KEEP, editing, look, set_limits

    catalog = open_state_catalog()
    given = {
        "requests_per_minute": requests_per_minute,
        "urls_per_day": urls_per_day,
        "bytes_per_day": bytes_per_day,
    }
    if usual or any(given.values()):
        untouched = None if usual else KEEP
        with editing(catalog, operator()) as edit:
            set_limits(
                edit,
                name,
                requests_per_minute=requests_per_minute or untouched,
                urls_per_day=urls_per_day or untouched,
                bytes_per_day=bytes_per_day or untouched,
            )
    with catalog.reading() as session:
        limits = look.recipient(session, name).limits
    for key in given:
        typer.echo(f"{key}\t{limits.get(key, 'as the settings say')}")
