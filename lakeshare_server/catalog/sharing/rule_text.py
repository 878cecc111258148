"""Rules as the catalog keeps them: SQL text. What it means, and whether files can decide it, is judged above.

A rule that cannot be understood when it is needed lets nothing through.
"""

from lakeshare_server.errors import BadRequest

LONGEST_RULE = 8000


def require_rule_text(field: str, rule: str | None) -> None:
    """See that this can be kept as a rule.

    Raises:
        BadRequest: it is empty, too long, or has control characters.
    """
    if rule is None:
        return
    if (
        not rule.strip()
        or len(rule) > LONGEST_RULE
        or not rule.replace("\n", " ").replace("\t", " ").isprintable()
    ):
        hint = (
            f"Give a predicate on partition columns in up to {LONGEST_RULE} characters, like region = 'EU'."
        )
        raise BadRequest(field, rule, hint)
