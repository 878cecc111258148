"""A token leads to its digest; the digest leads nowhere, and nothing less than the whole token leads to it."""

from lakeshare_server.catalog.credentials import new_token, token_digest


def test_a_token_has_a_digest_of_its_own() -> None:
    token, other = new_token(), new_token()
    assert token_digest(token) == token_digest(token)
    assert len({token_digest(text) for text in (token, other, token[:-1], token.lower(), token + " ")}) == 5
    assert token not in token_digest(token)
