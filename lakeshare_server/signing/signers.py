"""Signing the files of an answer: one session, one end for all its URLs, any number of stores.

A session is made for each answer; it signs Arrow columns of locations, thousands in one call. Nothing here is quick
enough for an event loop: call it from a thread.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_server.errors import Denied, Unserveable
from lakeshare_server.settings import StoreSettings
from lakeshare_server.signing.azure import AzureUrls
from lakeshare_server.signing.gcs import GcsUrls
from lakeshare_server.signing.life import now_s
from lakeshare_server.signing.local import LocalFolders, LocalSigner
from lakeshare_server.signing.s3 import s3_signer
from lakeshare_server.signing.signed_request import Headers, SignedRequest, read_key, signed_request
from lakeshare_server.signing.temporary import TemporaryCredentials, Vendor
from lakeshare_server.signing.temporary_azure import AzureVendor
from lakeshare_server.signing.temporary_gcs import GcsVendor
from lakeshare_server.signing.temporary_s3 import S3Vendor
from lakeshare_server.stores import Place, Stores
from lakeshare_server.stores.locations import AZURE, GCS, LOCAL, S3
from lakeshare_server.stores.s3 import AWS, AwsKeys, Bucket
from lakeshare_server.tables.byte_strings import byte_strings

LOCAL_REFUSAL = "the table is on the server's own disk, which only the server hands out"


class RootSigner(Protocol):
    """Signs keys below one root; those of the local disk, whose root is empty, are whole paths."""

    @property
    def expires_at_ms(self) -> int:
        """When all its URLs end."""
        ...

    def sign(self, keys: list[bytes]) -> list[bytes]:
        """A URL for each key, in order."""
        ...


class SigningSession:
    """URLs of one answer; `expires_at_ms` is when the first of them ends.

    `slow_store` names the store whose URLs take more than about a microsecond each, being signed with RSA or by Google;
    None if there is none.
    """

    def __init__(self, signers: dict[str, RootSigner], stores: Stores, *, slow_store: str | None) -> None:
        self.slow_store = slow_store
        self._signers = signers
        self._stores = stores
        self.expires_at_ms = min(signer.expires_at_ms for signer in signers.values())

    def sign(self, paths: pa.StringArray) -> list[bytes]:
        """One URL for each location, in order.

        Raises:
            Unserveable: a location lies below none of the session's roots.
            Unavailable: the store's credentials cannot sign now.
        """
        if len(self._signers) == 1:
            root, signer = next(iter(self._signers.items()))
            if pc.all(pc.starts_with(paths, f"{root}/"), min_count=0).as_py():
                locations = byte_strings(paths)
                return signer.sign(_below(root, locations) if root else locations)
        return self._sign_scattered(paths)

    def _sign_scattered(self, paths: pa.StringArray) -> list[bytes]:
        urls = [b""] * len(paths)
        places = [self._stores.place(path) for path in paths.to_pylist()]
        at: dict[str, list[int]] = {}
        for number, place in enumerate(places):
            at.setdefault(place.root, []).append(number)
        for root, numbers in at.items():
            if root not in self._signers:
                location = places[numbers[0]].location
                raise Unserveable(
                    f"{location} lies in a store that this table is not known to use.",
                    "Provider: follow the table anew.",
                    places=[location],
                )
            keys = [places[number].key.encode() for number in numbers]
            for number, url in zip(numbers, self._signers[root].sign(keys), strict=True):
                urls[number] = url
        return urls


class Signers:
    """All the ways to sign, behind one door; made once, for many threads."""

    def __init__(self, settings: StoreSettings, local: LocalSigner, stores: Stores | None = None) -> None:
        self._settings = settings
        self._local = local
        self._stores = stores = stores or Stores(settings)
        self._gcs = GcsUrls(stores.gcs)
        self._azure = AzureUrls(stores.azure)
        self._vendors: dict[str, Vendor] = {
            S3: S3Vendor(stores.s3, settings),
            GCS: GcsVendor(stores.gcs),
            AZURE: AzureVendor(stores.azure, self._azure),
        }

    def session(self, roots: Sequence[str], issue: Callable[[str], str], life_s: int) -> SigningSession:
        """For files below the given roots of stores; no URL outlives `life_s` or what it is signed with.

        Roots of the server's own disk are folders; `issue` gives the ticket that URLs of files below one have.

        Raises:
            Unserveable: the server's credentials read a store, but cannot sign for it.
            Unavailable: the credentials of a store cannot be had now.
        """
        moment_s = now_s()
        places = [self._stores.place(root or "/") for root in (roots or [""])]
        folders = [place.key for place in places if place.kind == LOCAL]
        signers: dict[str, RootSigner] = {
            place.root: self._signer(place, life_s, moment_s) for place in places if place.kind != LOCAL
        }
        if folders:
            ends_ms = (moment_s + life_s) * 1000
            signers[""] = LocalFolders(self._local, issue, folders, ends_ms)
        slow = [place.root for place in places if place.kind == GCS and not self._settings.gcs_hmac_secret]
        return SigningSession(signers, self._stores, slow_store=slow[0] if slow else None)

    def can_vend(self, location: str) -> str | None:
        """Why no temporary credentials can be had for a table's location; None when they can.

        Raises:
            Unavailable: what tells is not there now.
        """
        place = self._stores.place(location)
        if place.kind == LOCAL:
            return LOCAL_REFUSAL
        try:
            return self._vendors[place.kind].refusal(place)
        except Unserveable as error:
            return str(error)

    def vend(self, location: str, life_s: int) -> TemporaryCredentials:
        """Temporary credentials that read below `location`, and nothing else.

        Raises:
            Unserveable: this store, or these credentials, issue none.
            Unavailable: the store issues none now.
        """
        refusal = self.can_vend(location)
        if refusal:
            raise Unserveable(
                f"No temporary credentials for {location}: {refusal}.",
                "Read the files by their URLs.",
                places=[location],
            )
        place = self._stores.place(location)
        return self._vendors[place.kind].vend(place, life_s, now_s())

    def s3_client_config(self, place: Place) -> dict[str, str]:
        """Where an Iceberg client finds the bucket of a place in S3, in the names it knows.

        Raises:
            Unavailable: AWS does not tell now where the bucket is.
        """
        bucket = self._stores.s3.bucket(place.bucket, public=True)
        config = {"s3.region": bucket.region, "client.region": bucket.region}
        if not AWS.fullmatch(bucket.endpoint):
            config["s3.endpoint"] = bucket.endpoint
        config["s3.path-style-access"] = str(bucket.path_style).lower()
        return config

    def s3_read(self, location: str, method: str, uri: str) -> str:
        """Which location a client's request would read, in the bucket of the table at `location`.

        Raises:
            Denied: it is no plain read of this bucket.
        """
        place = self._stores.place(location)
        if place.kind != S3:
            raise Denied("Requests are signed for tables in S3 only.")
        key = read_key(self._stores.s3.bucket(place.bucket, public=True), method, uri)
        return f"{place.root}/{key}"

    def signed_read(self, location: str, method: str, headers: Headers) -> SignedRequest:
        """A read of this object of S3, signed with the server's keys.

        Raises:
            Unavailable: there are no keys now.
        """
        place = self._stores.place(location)
        bucket = self._stores.s3.bucket(place.bucket, public=True)
        return signed_request(bucket, self._stores.s3.keys(), method, place.key, headers)

    def _signer(self, place: Place, life_s: int, moment_s: int) -> RootSigner:
        if place.kind == S3:
            bucket = self._stores.s3.bucket(place.bucket, public=True)
            payer = self._settings.s3_request_payer
            return s3_signer(bucket, self._stores.s3.keys(), life_s, moment_s, payer)
        if place.kind == GCS:
            return self._google_signer(place, life_s, moment_s)
        return self._azure.signer(place, life_s, moment_s)

    def _google_signer(self, place: Place, life_s: int, moment_s: int) -> RootSigner:
        secret, key_id = self._settings.gcs_hmac_secret, self._settings.gcs_hmac_id
        if not (secret and key_id):
            return self._gcs.signer(place.bucket, life_s, moment_s)
        # Google takes S3's signatures with such a key.
        bucket = Bucket(place.bucket, "auto", self._stores.gcs.endpoint(public=True), path_style=True)
        return s3_signer(bucket, AwsKeys(key_id, secret.get_secret_value(), None, None), life_s, moment_s)


def _below(root: str, locations: list[bytes]) -> list[bytes]:
    start = len(root.encode()) + 1
    return [location[start:] for location in locations]
