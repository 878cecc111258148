"""Commands for the webhooks of recipients, and for their dead letters."""

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from lakeshare_server.cli.console import AsJson, edit_catalog, open_state_catalog, print_json
from lakeshare_server.lazy import LazyModule
from lakeshare_server.settings import ServerSettings

if TYPE_CHECKING:
    from lakeshare_server.catalog import webhooks
    from lakeshare_server.catalog.webhooks import DeliveryState
    from lakeshare_server.provider.webhooks import WebhookRegistry
else:
    DeliveryState = str
    webhooks = LazyModule("lakeshare_server.catalog.webhooks")

WebhookId = Annotated[str, typer.Argument(metavar="WEBHOOK", help="The webhook's id, as `list` prints it.")]
GRACE_HOURS = 24

HELP = "Webhooks: URLs that get an event for each new publication that a recipient may read."
webhook_app = typer.Typer(help=HELP, no_args_is_help=True)


def _registry() -> "WebhookRegistry":
    from lakeshare_server.provider.webhooks import WebhookRegistry

    return WebhookRegistry(ServerSettings())


@webhook_app.command("add")
def add_webhook(
    recipient: Annotated[str, typer.Argument(metavar="RECIPIENT", help="The recipient's name.")],
    url: Annotated[str, typer.Argument(help="Where events are sent: https, of a public address.")],
    share: Annotated[str | None, typer.Option(help="Events of this share only.")] = None,
    comment: Annotated[str | None, typer.Option(help="A description.")] = None,
) -> None:
    """Add a webhook to a recipient and print its secret, once.

    Example: lakeshare webhook add acme https://hooks.acme.example/lakeshare --share sales
    """
    registry = _registry()
    registry.require_url(url)
    with edit_catalog() as edit:
        webhook, secret = registry.add(edit, recipient, url, share=share, comment=comment)
    typer.echo(f"webhook: {webhook.id}")
    typer.echo(f"secret: {secret}")
    typer.echo(f"{webhook.recipient} verifies requests with the secret; it is not shown again.")


@webhook_app.command("list")
def list_webhooks(
    recipient: Annotated[
        str | None, typer.Argument(metavar="RECIPIENT", help="Only those of this recipient.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List webhooks with their pending deliveries and dead letters."""
    with open_state_catalog().reading() as session:
        found = webhooks.list_webhooks(session, recipient)
    if as_json:
        print_json([{name: value for name, value in vars(each).items() if name != "key"} for each in found])
        return
    for each in found:
        delivered = "" if each.delivered_at is None else f"delivered {_minute(each.delivered_at)}"
        counts, last = f"{each.pending} pending, {each.dead} dead", each.last_error or delivered
        typer.echo(
            "\t".join((each.id, each.recipient, each.share or "all shares", each.url, counts, last)).rstrip()
        )


@webhook_app.command("test")
def test_webhook(webhook: WebhookId) -> None:
    """Queue a test event, which the server sends; `deliveries` shows the result."""
    registry = _registry()
    with edit_catalog() as edit:
        event_id = registry.test(edit, webhook)
    typer.echo(f"{event_id} is queued; the result: lakeshare webhook deliveries {webhook}")


@webhook_app.command("rotate")
def rotate_secret(
    webhook: WebhookId,
    grace_hours: Annotated[
        int, typer.Option(min=0, max=720, help="How long events are signed with the old secret, too.")
    ] = GRACE_HOURS,
) -> None:
    """Give a webhook a new secret and print it, once; the old one stays valid for a grace time."""
    registry = _registry()
    with edit_catalog() as edit:
        changed, secret = registry.rotate(edit, webhook, timedelta(hours=grace_hours))
    typer.echo(f"secret: {secret}")
    until = changed.previous_secret_until
    typer.echo(
        f"The old one is {'not valid any more' if until is None else f'valid until {_minute(until)}'}."
    )


@webhook_app.command("remove")
def remove_webhook(webhook: WebhookId) -> None:
    """Remove a webhook with its deliveries."""
    with edit_catalog() as edit:
        removed = webhooks.remove_webhook(edit, webhook)
    typer.echo(f"{removed.recipient}: {removed.url} gets no events any more")


@webhook_app.command("deliveries")
def list_deliveries(
    webhook: WebhookId,
    dead: Annotated[bool, typer.Option("--dead", help="Only dead letters.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="Number of deliveries, newest first.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List the deliveries of a webhook: event, state, attempts, the last result."""
    state: DeliveryState | None = "dead" if dead else None
    with open_state_catalog().reading() as session:
        found = webhooks.list_deliveries(session, webhooks.get_webhook(session, webhook), state, limit)
    if as_json:
        print_json([{name: value for name, value in vars(each).items() if name != "key"} for each in found])
        return
    for each in found:
        result = each.last_error or each.last_status or ""
        words = each.event_id, each.type, each.state, f"{each.attempts} attempts", result
        typer.echo("\t".join(map(str, words)).rstrip())


@webhook_app.command("resend")
def resend(
    webhook: WebhookId,
    events: Annotated[
        list[str] | None, typer.Argument(metavar="EVENT...", help="Ids of dead letters; all by default.")
    ] = None,
) -> None:
    """Send dead letters of a webhook again."""
    retry_for = timedelta(hours=ServerSettings().webhook_retry_hours)
    with edit_catalog() as edit:
        count = webhooks.resend_deliveries(edit, webhook, events or [], retry_for)
    typer.echo(f"{count} deliveries are queued again")


def _minute(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%MZ}"
