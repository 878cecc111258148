"""How much a recipient may ask for: its own limits, in the place of those of the server's settings."""

from lakeshare_server.catalog.models.base import MAX_LONG
from lakeshare_server.catalog.sharing.editing import KEEP, Edit, Keep, given, touch
from lakeshare_server.catalog.sharing.look import recipient, recipient_row
from lakeshare_server.catalog.sharing.states import RecipientState
from lakeshare_server.errors import BadRequest


def set_limits(
    edit: Edit,
    name: str,
    *,
    requests_per_minute: int | Keep | None = KEEP,
    urls_per_day: int | Keep | None = KEEP,
    bytes_per_day: int | Keep | None = KEEP,
    revision: int | None = None,
) -> RecipientState:
    """Change the limits that are given; None gives back that of the settings.

    Raises:
        NotFound: there is no such recipient.
        BadRequest: a limit is no whole number of one or more.
        CatalogConflict: the revision is another.
    """
    row = recipient_row(edit.session, name)
    before = recipient(edit.session, name)
    fields = given(
        requests_per_minute=requests_per_minute, urls_per_day=urls_per_day, bytes_per_day=bytes_per_day
    )
    for field, most in fields.items():
        if most is not None and (isinstance(most, bool) or not 1 <= most <= MAX_LONG):
            raise BadRequest(
                field, most, "Give a whole number of one or more, or none to take the settings'."
            )
    touch(edit, row, "Recipient", row.name, revision)
    limits = {**(row.limits or {}), **fields}
    row.limits = {field: most for field, most in limits.items() if most is not None} or None
    edit.session.flush()
    told = recipient(edit.session, row.name)
    edit.changed("set_limits", row.name, before.as_json(), told.as_json())
    return told
