"""Callbacks for the parts of statements: words, clauses, predicates.

Called innermost first; nothing here descends, so that no depth is too much.
"""

from typing import Any

from lark import Token, v_args
from lark.tree import Meta
from lark.visitors import Transformer_NonRecursive

from lakeshare_server.sql import rule_text
from lakeshare_server.sql import statements as said
from lakeshare_server.sql.reading import (
    Clause,
    Nested,
    Unusable,
    moment_in,
    name_in,
    number_in,
    place_at,
    place_of,
    policy_of,
    span_in,
    text_in,
    tokens_of,
    unique,
)
from lakeshare_server.sql.words import plain_text, quoted_name, quoted_text

# What lark gives to a callback: tokens, and what other callbacks made. The grammar says which.
Parts = list[Any]


@v_args(meta=True)
class ClauseBuilder(Transformer_NonRecursive[Token, Any]):
    """Makes clauses; the class of statements builds on it."""

    # --- words

    def name(self, _: Meta, parts: Parts) -> str:
        return name_in(parts[0])

    def principal(self, _: Meta, parts: Parts) -> str:
        [word] = parts
        return plain_text(word) if isinstance(word, Token) else str(word)

    def object_path(self, _: Meta, parts: Parts) -> tuple[str, ...]:
        return tuple(parts)

    def number(self, _: Meta, parts: Parts) -> int:
        return number_in(parts[0])

    def moment(self, _: Meta, parts: Parts) -> Any:
        return moment_in(parts[0])

    def pattern(self, _: Meta, parts: Parts) -> str:
        return plain_text(parts[0])

    def if_not_exists(self, _: Meta, __: Parts) -> bool:
        return True

    def if_exists(self, _: Meta, __: Parts) -> bool:
        return True

    # --- clauses

    def comment(self, meta: Meta, parts: Parts) -> Clause:
        return Clause("comment", text_in(parts[0]), place_at(meta), "COMMENT")

    def alias(self, meta: Meta, parts: Parts) -> Clause:
        return Clause("alias", tuple(parts), place_at(meta), "AS")

    def in_share(self, meta: Meta, parts: Parts) -> Clause:
        return Clause("share", parts[0], place_at(meta), "IN SHARE")

    def columns(self, meta: Meta, parts: Parts) -> Clause:
        return Clause("columns", tuple(parts), place_at(meta), "COLUMNS")

    def start_version(self, _: Meta, parts: Parts) -> int:
        return int(parts[0])

    def with_history(self, meta: Meta, parts: Parts) -> Clause:
        return Clause("history", (True, parts[0] if parts else None), place_at(meta), "WITH HISTORY")

    def without_history(self, meta: Meta, _: Parts) -> Clause:
        return Clause("history", (False, None), place_at(meta), "WITHOUT HISTORY")

    def with_change_data_feed(self, meta: Meta, parts: Parts) -> Clause:
        # Without a start, recipients read what is published from the moment of adding on.
        return Clause(
            "history", (True, parts[0] if parts else said.Now()), place_at(meta), "WITH CHANGE DATA FEED"
        )

    def until(self, meta: Meta, parts: Parts) -> Clause:
        return Clause("until", parts[0], place_at(meta), "UNTIL")

    def starting(self, meta: Meta, parts: Parts) -> Clause:
        return Clause("starts_at", parts[0], place_at(meta), "FROM")

    def agreement(self, meta: Meta, parts: Parts) -> Clause:
        return Clause("agreement", plain_text(parts[0]), place_at(meta), "AGREEMENT")

    def ip_allow(self, meta: Meta, parts: Parts) -> Clause:
        return Clause("ip_allow", parts[0], place_at(meta), "IP ALLOW")

    def set_properties(self, meta: Meta, parts: Parts) -> Clause:
        return Clause("properties", parts[0], place_at(meta), "PROPERTIES")

    def using_id(self, meta: Meta, parts: Parts) -> Clause:
        return self._using(meta, "USING ID", metastore_id=plain_text(parts[0]))

    def using_oidc(self, meta: Meta, parts: Parts) -> Clause:
        return self._using(meta, "USING OIDC", authentication="OIDC_FEDERATION", policy=parts[0])

    def using_client_credentials(self, meta: Meta, _: Parts) -> Clause:
        return self._using(meta, "USING CLIENT CREDENTIALS", authentication="OAUTH_CLIENT_CREDENTIALS")

    def using_token(self, meta: Meta, _: Parts) -> Clause:
        return self._using(meta, "USING TOKEN", authentication="TOKEN")

    def _using(self, meta: Meta, spelt: str, **fields: object) -> Clause:
        return Clause("using", fields, place_at(meta), spelt)

    # --- lists in parentheses

    def texts(self, _: Meta, parts: Parts) -> tuple[str, ...]:
        return tuple(plain_text(part) for part in parts)

    def key(self, _: Meta, parts: Parts) -> str:
        if isinstance(parts[0], Token):
            return plain_text(parts[0])
        return ".".join(parts)

    def property(self, meta: Meta, parts: Parts) -> tuple[Any, ...]:
        key, value = parts
        return key, plain_text(value), place_at(meta)

    def properties(self, _: Meta, parts: Parts) -> dict[str, str]:
        return unique(parts, "The property")

    def oidc_field(self, meta: Meta, parts: Parts) -> tuple[Any, ...]:
        key, value = parts
        return key.lower(), plain_text(value), place_at(meta)

    def oidc(self, meta: Meta, parts: Parts) -> said.Policy:
        return policy_of(meta, parts)

    def keep_old(self, _: Meta, parts: Parts) -> Clause:
        return Clause("keep_old_for", span_in(parts[0]), place_of(parts[0]), "KEEP OLD FOR")

    def token_end(self, meta: Meta, parts: Parts) -> Clause:
        return Clause("until", parts[0], place_at(meta), "UNTIL")

    # --- predicates

    def nested(self, meta: Meta, parts: Parts) -> Nested:
        return Nested.of(meta, parts)

    def where(self, meta: Meta, parts: Parts) -> Clause:
        text = rule_text.spelt(tokens_of(parts))
        if not text:
            raise Unusable("WHERE needs a predicate in its parentheses.", place_at(meta))
        return Clause("rule", text, place_at(meta), "WHERE")

    def partitions(self, meta: Meta, parts: Parts) -> Clause:
        return Clause("rule", rule_text.any_of(parts), place_at(meta), "PARTITION")

    def group(self, _: Meta, parts: Parts) -> list[str]:
        return list(parts)

    def equal(self, _: Meta, parts: Parts) -> str:
        column, value = parts
        return f"{quoted_name(column)} = {value}"

    def like(self, _: Meta, parts: Parts) -> str:
        column, pattern = parts
        return f"{quoted_name(column)} LIKE {quoted_text(plain_text(pattern))}"

    def text_value(self, _: Meta, parts: Parts) -> str:
        return quoted_text(plain_text(parts[0]))

    def number_value(self, _: Meta, parts: Parts) -> str:
        return "".join(parts).removeprefix("+")

    def truth_value(self, _: Meta, parts: Parts) -> str:
        return str(parts[0]).upper()

    def recipient_value(self, _: Meta, parts: Parts) -> str:
        key = plain_text(parts[0]) if isinstance(parts[0], Token) else ".".join(parts)
        return f"current_recipient({quoted_text(key)})"
