"""Grants with rules and times, groups and properties, by the operations that administrators have."""

from collections.abc import Mapping
from typing import Any

from lakeshare_server.catalog.sharing import alter_recipient, alter_table, create_group, editing, grant
from tests.builders.sharing import Provider

BY = "tests"


def grant_to(provider: Provider, recipient: str, share: str = "flights", **terms: Any) -> None:
    """Grant a share to a recipient, or change its grant: terms are `rule`, `starts_at` and `ends_at`."""
    with editing(provider.catalog, BY) as edit:
        grant(edit, share, recipient=recipient, **terms)


def grant_to_group(
    provider: Provider, group: str, members: tuple[str, ...] = (), share: str = "flights", **terms: Any
) -> None:
    """Make a group of recipients and grant a share to it."""
    with editing(provider.catalog, BY) as edit:
        create_group(edit, group, members=members)
        grant(edit, share, group=group, **terms)


def describe(provider: Provider, recipient: str, properties: Mapping[str, str]) -> None:
    """Give a recipient these properties."""
    with editing(provider.catalog, BY) as edit:
        alter_recipient(edit, recipient, properties=properties)


def alter_shared(provider: Provider, path: str, **fields: Any) -> None:
    """Change a shared table, `share.schema.table`: fields are `rule`, `publication`, and others of `alter_table`."""
    with editing(provider.catalog, BY) as edit:
        alter_table(edit, *path.split("."), **fields)
