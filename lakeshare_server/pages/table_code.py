"""Code that reads a shared table, for the profile of whoever asks."""

from dataclasses import asdict
from typing import Any

from lakeshare_server.access.serveability import TableServeability
from lakeshare_server.access.view import TableView
from lakeshare_server.catalog.sharing import RecipientState, look
from lakeshare_server.routes.context import AskedTable, Parts
from lakeshare_server.snippets.doors import doors_of
from lakeshare_server.snippets.told import ToldSnippet, snippet_table, told_snippets


def table_code(by: AskedTable) -> list[dict[str, Any]]:
    """The snippets of a table as JSON's types.

    Raises:
        NotFound: nothing was published yet.
        Unavailable: what tells of credentials is not there now.
    """
    with by.parts.catalog.reading() as session:
        recipient = look.recipient(session, by.reader.name)
    return [asdict(one) for one in view_code(by.parts, by.view, recipient)]


def view_code(parts: Parts, view: TableView, recipient: RecipientState) -> list[ToldSnippet]:
    """The snippets of a table that a recipient may read.

    Raises:
        NotFound, Unavailable: as `table_code`.
    """
    doors = doors_of(TableServeability(parts.iceberg_tables, parts.signers, parts.settings).judge(view))
    table = snippet_table(
        view.entry,
        doors,
        profile=profile_name(recipient.name),
        iceberg_url=parts.settings.iceberg_url(),
        sharing_url=parts.settings.base_url(),
    )
    # Snippets for Iceberg's door read a bearer token from the profile; other profiles have none.
    return told_snippets(table, doors, None if recipient.authentication == "TOKEN" else "delta-sharing")


def profile_name(recipient: str) -> str:
    """What a recipient's profile file is called: without characters that files, or URLs of tables, cannot have."""
    plain = "".join(one if one.isalnum() or one in "-_." else "-" for one in recipient)
    return f"{plain.strip('.-')[:100] or 'recipient'}.share"
