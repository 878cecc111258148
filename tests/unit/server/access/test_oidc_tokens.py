"""A token counts when the issuer that was named signed it, for us, for now; nothing in a token leads anywhere."""

import base64
import hmac
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from lakeshare_server.access import oidc
from lakeshare_server.access.oidc import Issuers, read_claimed_issuer
from lakeshare_server.errors import Unauthenticated, Unavailable
from lakeshare_server.settings import ServerSettings
from tests.builders.oidc_issuer import AnIssuer, an_issuer
from tests.builders.waiting import wait_until

OURS = ("lakeshare",)
ABOUT = "/realm/.well-known/openid-configuration"
KEYS = "/realm/keys"


@pytest.fixture
def issuer() -> Iterator[AnIssuer]:
    with an_issuer() as issuer:
        yield issuer


def issuers(issuer: AnIssuer, **settings: Any) -> Issuers:
    return Issuers(ServerSettings(oidc_private_hosts=issuer.host, **settings))


def unsigned(header: dict[str, Any], claims: dict[str, Any]) -> str:
    parts = (json.dumps(part).encode() for part in (header, claims))
    return ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts) + "."


def nested() -> str:
    """Brackets beyond what a parser can bear."""
    return base64.urlsafe_b64encode(b'{"a":' + b"[" * 100_000).decode().rstrip("=")


def keyed_with(key: bytes, header: dict[str, Any], claims: dict[str, Any]) -> str:
    """Signed with what everybody knows: the library itself refuses to."""
    text = unsigned(header, claims)
    signature = hmac.digest(key, text.rstrip(".").encode(), "sha256")
    return text + base64.urlsafe_b64encode(signature).decode().rstrip("=")


def public_pem(issuer: AnIssuer) -> bytes:
    public = issuer.keys["first"].public_key()
    return public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def test_a_good_token_says_what_the_issuer_said_and_its_keys_are_asked_for_once(issuer: AnIssuer) -> None:
    verifier = issuers(issuer)
    for number in range(3):
        token = issuer.token(groups=["readers"], jti=str(number))
        claims = verifier.verified_claims(token, issuer.url, OURS)
        assert (claims["sub"], claims["groups"]) == ("acme-job", ["readers"])
    assert issuer.asked == [ABOUT, KEYS]


@pytest.mark.parametrize(
    "claims",
    [
        {"aud": "others"},
        {"aud": ["others", "more"]},
        {"aud": None},
        {"aud": 7},
        {"iss": "https://elsewhere.example"},
        {"iss": None},
        {"exp": int(time.time()) - 120},
        {"exp": None},
        {"exp": "soon"},
        {"nbf": int(time.time()) + 86_400},
        {"iat": int(time.time()) + 86_400},
    ],
)
def test_a_token_for_others_or_of_another_time_is_refused(issuer: AnIssuer, claims: dict[str, Any]) -> None:
    with pytest.raises(Unauthenticated):
        issuers(issuer).verified_claims(issuer.token(**claims), issuer.url, OURS)


def test_clocks_may_differ_by_as_much_as_is_set(issuer: AnIssuer) -> None:
    token = issuer.token(exp=int(time.time()) - 30, nbf=int(time.time()) + 30)
    assert issuers(issuer).verified_claims(token, issuer.url, OURS)["sub"] == "acme-job"
    with pytest.raises(Unauthenticated, match=r"expired|not yet valid"):
        issuers(issuer, oidc_leeway_s=5).verified_claims(token, issuer.url, OURS)


def test_a_forged_signature_is_refused_in_every_known_way(issuer: AnIssuer) -> None:
    good = issuer.token()
    header, claims, signature = good.split(".")
    said = json.loads(base64.urlsafe_b64decode(claims + "=="))
    with an_issuer("other") as other:
        other.keys = {"first": next(iter(other.keys.values()))}
        forged = [
            f"{header}.{claims}.{signature[:-6]}AAAAAA",
            f"{header}.{claims}.",
            unsigned({"alg": "none", "typ": "JWT", "kid": "first"}, said),
            unsigned({"alg": "NONE", "kid": "first"}, said),
            keyed_with(public_pem(issuer), {"alg": "HS256", "kid": "first"}, said),
            other.token(iss=issuer.url),
            # Where to find the key is not for a token to say.
            other.token(headers={"jku": f"{other.url}/keys", "jwk": other.published[0]}, iss=issuer.url),
            unsigned({"alg": "RS256", "kid": 7}, said) + signature,
            issuer.token(headers={"kid": "../../etc/passwd"}),
            issuer.token(headers={"crit": ["exp"]}),
            nested() + ".",
            nested() + "." + nested(),
            "ey.ey.",
            "",
            "ey" + "A" * 5000,
        ]
        verifier = issuers(issuer)
        for token in forged:
            with pytest.raises(Unauthenticated):
                verifier.verified_claims(token, issuer.url, OURS)
        assert other.asked == []
    assert verifier.verified_claims(good, issuer.url, OURS)["sub"] == "acme-job"


def test_a_new_key_counts_at_once_and_invented_ones_do_not_make_us_ask_again_and_again(
    issuer: AnIssuer,
) -> None:
    verifier = issuers(issuer)
    old = issuer.token()
    verifier.verified_claims(old, issuer.url, OURS)
    issuer.change_key("second")
    assert verifier.verified_claims(issuer.token(), issuer.url, OURS)["sub"] == "acme-job"
    with pytest.raises(Unauthenticated, match="no such key"):
        verifier.verified_claims(old, issuer.url, OURS)
    for number in range(20):
        with pytest.raises(Unauthenticated, match="no such key"):
            verifier.verified_claims(issuer.token(headers={"kid": f"x{number}"}), issuer.url, OURS)
    assert issuer.asked == [ABOUT, KEYS] * 2


def test_keys_are_asked_for_again_in_time_and_outlive_an_issuer_that_is_silent_for_a_while(
    issuer: AnIssuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    verifier = issuers(issuer)
    token = issuer.token()
    verifier.verified_claims(token, issuer.url, OURS)
    monkeypatch.setattr(oidc, "KEEP_S", 0.0)
    issuer.is_silent = True
    for _ in range(5):
        assert verifier.verified_claims(token, issuer.url, OURS)["sub"] == "acme-job"
    # In a thread of its own, so that nobody waits; a silent issuer is not asked for each token.
    wait_until(lambda: len(issuer.asked) > 2)
    assert issuer.asked == [ABOUT, KEYS, ABOUT]
    monkeypatch.setattr(oidc, "STALE_S", 0.0)
    with pytest.raises(Unavailable, match="503"):
        verifier.verified_claims(token, issuer.url, OURS)
    monkeypatch.setattr(oidc, "PAUSE_S", 0.0)
    issuer.is_silent = False
    assert verifier.verified_claims(token, issuer.url, OURS)["sub"] == "acme-job"


@pytest.mark.parametrize(
    ("about", "told"),
    [
        ({"issuer": "https://elsewhere.example"}, "calls itself"),
        ({"issuer": None}, "calls itself"),
        ({"jwks_uri": None}, "its keys"),
        ({"jwks_uri": "file:///etc/passwd"}, "only https"),
        ({"jwks_uri": "http://127.0.0.1:1/keys"}, "only https"),
        ({"jwks_uri": "https://127.0.0.1:1/keys"}, "private network"),
        ({"jwks_uri": "https://[::1]:1/keys"}, "private network"),
        ({"jwks_uri": "https://169.254.169.254/latest"}, "private network"),
        ({"jwks_uri": "https://localhost/keys"}, "private network"),
        ({"jwks_uri": "https://[::ffff:10.0.0.1]/keys"}, "private network"),
        ({"jwks_uri": "http://[oops/keys"}, "cannot be had"),
    ],
)
def test_an_issuer_that_leads_elsewhere_is_not_followed(
    issuer: AnIssuer, about: dict[str, Any], told: str
) -> None:
    issuer.about |= about
    with pytest.raises(Unavailable, match=told):
        issuers(issuer).verified_claims(issuer.token(), issuer.url, OURS)
    assert issuer.asked == [ABOUT]


def test_a_redirect_is_not_followed(issuer: AnIssuer) -> None:
    issuer.about = "elsewhere"  # type: ignore[assignment]
    with pytest.raises(Unavailable, match="302"):
        issuers(issuer).verified_claims(issuer.token(), issuer.url, OURS)


def test_without_the_setting_nothing_private_is_asked(issuer: AnIssuer) -> None:
    with pytest.raises(Unavailable, match="LAKESHARE_OIDC_PRIVATE_HOSTS"):
        Issuers(ServerSettings()).verified_claims(issuer.token(), issuer.url, OURS)
    assert issuer.asked == []


@pytest.mark.parametrize(
    "published",
    [
        None,
        [],
        "keys",
        [7],
        [{"kty": "oct", "k": "c2VjcmV0", "kid": "first", "alg": "HS256"}],
        [{"kty": "RSA", "n": "!", "e": "AQAB", "kid": "first"}],
        [{"kty": "EC", "crv": "unheard", "kid": "first"}],
    ],
)
def test_an_issuer_without_usable_keys_is_not_one(issuer: AnIssuer, published: Any) -> None:
    token = issuer.token()
    issuer.published = published
    with pytest.raises(Unavailable, match="no keys that sign"):
        issuers(issuer).verified_claims(token, issuer.url, OURS)


def test_a_key_for_encryption_signs_nothing(issuer: AnIssuer) -> None:
    token = issuer.token()
    other = {**issuer.published[0], "use": "enc"}
    issuer.change_key("second")
    issuer.published.append(other)
    with pytest.raises(Unauthenticated, match="no such key"):
        issuers(issuer).verified_claims(token, issuer.url, OURS)


def test_which_issuer_a_token_claims_is_read_without_trust(issuer: AnIssuer) -> None:
    assert read_claimed_issuer(issuer.token()) == issuer.url
    for token in (
        "",
        "abc",
        "a.b.c",
        "eyJ.eyJ.eyJ",
        "ey..",
        "ey" * 5000 + "..",
        f"{nested()}.{nested()}.",
        issuer.token(iss=None),
    ):
        assert read_claimed_issuer(token) is None
    assert read_claimed_issuer(unsigned({"alg": "none"}, {"iss": ["a"]})) is None
