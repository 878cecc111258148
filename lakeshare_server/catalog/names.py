"""What names, owners, properties, addresses and the texts of rules may look like, wherever they come in."""

import ipaddress
import re
import unicodedata
from collections.abc import Mapping, Sequence

from lakeshare_server.errors import BadRequest

NAME_PATTERN = re.compile(r"[^\x00-\x20\x7f/.]{1,255}")
# Clients put names into URLs as they are (delta-sharing 1.4 for Python): there `#` and `?` end the path, and `%` begins
# an escape.
OF_URLS = frozenset("#?%")
# Control characters, white space and halves of surrogate pairs.
INVISIBLE = frozenset({"Cc", "Cs", "Zl", "Zp", "Zs"})
NAME_HINT = "Names have 1 to 255 characters and no space, slash, dot, #, ?, % or control character."
RESERVED = ("databricks.", "lakeshare.")
MAX_PROPERTY_CHARS = 4000
MAX_PROPERTIES = 100
MAX_ADDRESSES = 1000
MAX_RULE_CHARS = 8000


def is_name(name: str) -> bool:
    """Whether clients can read what has this name: of a share, schema, table, recipient, group or policy."""
    return NAME_PATTERN.fullmatch(name) is not None and not any(
        one in OF_URLS or unicodedata.category(one) in INVISIBLE for one in name
    )


def require_name(field: str, name: str) -> None:
    """Refuse a new name that clients could not read. Names that the catalog holds are not judged again.

    Raises:
        BadRequest: a character of it cannot be used, or it is too long.
    """
    if not is_name(name):
        raise BadRequest(field, name, NAME_HINT)


def require_owner(owner: str | None) -> None:
    """See that a principal can be named so.

    Raises:
        BadRequest: it cannot.
    """
    if owner is not None and not 0 < len(owner.strip()) <= len(owner) <= 255:
        raise BadRequest("owner", owner, "Name a principal in 1 to 255 characters.")


def require_properties(field: str, properties: Mapping[str, str] | None) -> None:
    """See that these can be the properties of a share or a recipient.

    Raises:
        BadRequest: a key is empty, reserved or too long, a value is no text or too long, or there are too many.
    """
    if len(properties or {}) > MAX_PROPERTIES:
        raise BadRequest(field, f"{len(properties or {})} properties", f"Give {MAX_PROPERTIES} at most.")
    for key, value in (properties or {}).items():
        if not isinstance(key, str) or not 0 < len(key) <= 255 or not key.isprintable():
            raise BadRequest(field, key, "Keys are texts of 1 to 255 printable characters.")
        if key.lower().startswith(RESERVED):
            raise BadRequest(
                field, key, f"Keys that begin with {' or '.join(RESERVED)} are reserved; take another."
            )
        if not isinstance(value, str) or len(value) > MAX_PROPERTY_CHARS or "\x00" in value:
            raise BadRequest(
                f"{field}.{key}", value, f"Values are texts of up to {MAX_PROPERTY_CHARS} characters."
            )


def parse_networks(field: str, addresses: Sequence[str] | None) -> list[str] | None:
    """The addresses in their canonical form; None allows every address.

    Raises:
        BadRequest: one is neither an address nor a network, or has bits set behind its prefix.
    """
    if not addresses:
        return None
    if len(addresses) > MAX_ADDRESSES:
        raise BadRequest(field, f"{len(addresses)} addresses", f"Give {MAX_ADDRESSES} at most.")
    found = []
    for address in addresses:
        try:
            found.append(str(ipaddress.ip_network(address.strip())))
        except (ValueError, AttributeError) as error:
            hint = "Give an address like 192.0.2.7 or a network like 192.0.2.0/24 or 2001:db8::/32."
            raise BadRequest(field, address, hint) from error
    return list(dict.fromkeys(found))


def require_rule_text(field: str, rule: str | None) -> None:
    """See that this can be kept as a rule; what it means, and whether files can decide it, is judged above.

    Raises:
        BadRequest: it is empty, too long, or has control characters.
    """
    if rule is None:
        return
    if (
        not rule.strip()
        or len(rule) > MAX_RULE_CHARS
        or not rule.replace("\n", " ").replace("\t", " ").isprintable()
    ):
        hint = (
            f"Give a predicate on partition columns in up to {MAX_RULE_CHARS} characters, like region = 'EU'."
        )
        raise BadRequest(field, rule, hint)
