"""A token can be recognised from its digest, and from nothing less than the whole token."""

from lakeshare_server.catalog.tokens import is_token, new_token, token_digest


def test_a_token_is_recognised_by_its_digest_only():
    token, other = new_token(), new_token()
    assert is_token(token, token_digest(token))
    assert not is_token(other, token_digest(token))
    assert not is_token(token[:-1], token_digest(token))
    assert token not in token_digest(token)
