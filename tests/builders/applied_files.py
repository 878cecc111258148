"""Files of `lakeshare apply`, and what the catalog holds before and after them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lakeshare_server.catalog import Catalog, states
from lakeshare_server.catalog.declared import export, read_files
from lakeshare_server.catalog.declared.files import DesiredObject, FoundTable, Key, TableLocation
from lakeshare_server.catalog.declared.plan import Step
from lakeshare_server.catalog.sharing import editing

EVERYTHING = """
shares:
  partners:
    comment: |
      Orders of the last year,
      for partners
    display_name: Partners, ü
    owner: sales-data
    properties: {tier: gold}
    tables:
      sales.orders:
      sales.items: lake.items_v2
      eu.orders:
        table: sales.orders
        comment: Those of the EU
        history: false
        start_version: 3
        rule: region = current_recipient('region')
        publication: 12
      eu.seen: {table: sales.seen, kind: VIEW, directory_access: true}
  empty:
recipients:
  acme:
    comment: "Acme: first customer"
    owner: ann
    properties: {region: EU, "a b": 'it''s'}
    ip_allow: [203.0.113.0/24, 2001:db8::1]
    expires_at: 2030-01-01T00:00:00+01:00
    agreement: Do not pass it on.
  Ci:
    authentication: OIDC_FEDERATION
    policies:
      main: {issuer: "https://issuer.example", subject: repo, audiences: [lake, other], comment: builds}
groups:
  retail: {comment: All shops, members: [acme, CI]}
  nobody:
grants:
  - {share: partners, recipient: acme, starts_at: 2024-01-01T00:00:00Z, ends_at: 2030-01-01T00:00:00Z}
  - {share: Partners, group: retail, rule: "day > '2024-01-01'"}
"""


def said(folder: Path, text: str, name: str = "shares.yaml") -> Mapping[Key, DesiredObject]:
    """What a file of this text wants; the tables that it follows count as read."""
    path = folder / name
    path.write_text(text, encoding="utf-8")
    wanted = read_files([path], as_written)
    read = FoundTable(None, "read")
    return {key: replace(one, found=read) if key[0] == "followed" else one for key, one in wanted.items()}


def as_written(locations: Sequence[str]) -> list[list[TableLocation]]:
    """One table at each location, with the location as it is written."""
    return [[TableLocation(one, one.rpartition("/")[2])] for one in locations]


def exported(catalog: Catalog, **options: bool) -> str:
    """The catalog as a file."""
    with catalog.reading() as session:
        return export(session, **options)


def told(steps: tuple[Step, ...]) -> list[tuple[str, str, list[str]]]:
    """What is done to which object, and its fields that are to be others."""
    return [(step.verb, step.name, [one.field for one in step.differences]) for step in steps]


def paths(catalog: Catalog) -> list[str]:
    """The shared tables."""
    with catalog.reading() as session:
        return sorted(one.path for one in states.list_objects(session))


def by_hand(catalog: Catalog, operation: Callable[[Any], object]) -> None:
    """Let somebody edit the catalog by hand."""
    with editing(catalog, "eve") as edit:
        operation(edit)
