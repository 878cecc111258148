"""The text of rules: PARTITION clauses and predicates in one spelling. What a rule means is decided elsewhere."""

import re
from collections.abc import Iterable, Sequence

KEYWORDS = frozenset(["AND", "OR", "NOT", "IN", "IS", "NULL", "LIKE", "BETWEEN", "TRUE", "FALSE"])
GLUED_BEFORE = frozenset(",).")
GLUED_AFTER = frozenset("(.")
SIGNS = frozenset("+-")
WORD = re.compile(r"[^\W\d]\w*")


def any_of(groups: Iterable[Sequence[str]]) -> str:
    """PARTITION groups as one predicate: a group holds where all of its tests do, the clause where any group does."""
    texts = [" AND ".join(tests) for tests in groups]
    return texts[0] if len(texts) == 1 else " OR ".join(f"({text})" for text in texts)


def spelt(tokens: Iterable[str]) -> str:
    """The tokens of a predicate with one space where one is needed, keywords in capitals."""
    written: list[str] = []
    for token in tokens:
        word = token.upper() if token.upper() in KEYWORDS else token
        if written and not _is_glued(written[-1], word):
            written.append(" ")
        written.append(word)
    return "".join(written)


def _is_glued(before: str, after: str) -> bool:
    if after in GLUED_BEFORE or before in GLUED_AFTER:
        return True
    # Rules do not reckon: a sign belongs to the number behind it.
    if before in SIGNS:
        return after[0].isdigit()
    return after == "(" and WORD.fullmatch(before) is not None and before not in KEYWORDS
