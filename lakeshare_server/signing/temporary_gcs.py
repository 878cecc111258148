"""Temporary credentials of Google Cloud Storage: our own token, narrowed to one folder and to reading."""

import json
from typing import Any

from lakeshare_server.errors import Unavailable, Unserveable
from lakeshare_server.signing.temporary import TemporaryCredentials
from lakeshare_server.stores import Place
from lakeshare_server.stores.gcs import GcsAccess

KIND = "gcpOauthToken"
# Google's tokens live an hour; one that is narrowed, as long as the one it is made of.
TOKEN_S = 3600


class GcsVendor:
    """Issues them with the credentials the server runs with."""

    def __init__(self, access: GcsAccess) -> None:
        self._access = access

    def refusal(self, place: Place) -> str | None:
        return None

    def vend(self, place: Place, life_s: int, now_s: int) -> TemporaryCredentials:
        """Whatever `life_s`, they live for an hour."""
        source = self._access.credentials
        from google.auth import downscoped as untyped
        from google.auth.exceptions import GoogleAuthError

        downscoped: Any = untyped

        rule = downscoped.AccessBoundaryRule(
            available_resource=f"//storage.googleapis.com/projects/_/buckets/{place.bucket}",
            available_permissions=["inRole:roles/storage.objectViewer"],
            availability_condition=downscoped.AvailabilityCondition(condition(place)) if place.key else None,
        )
        narrowed = downscoped.Credentials(source, downscoped.CredentialAccessBoundary([rule]))
        try:
            token, ends = self._access.refreshed(narrowed)
        except GoogleAuthError as error:
            if getattr(error, "retryable", False):
                raise Unavailable("Google's token service does not answer", "Try again later.") from None
            raise Unserveable(
                f"Google narrows no token for {place.root} ({type(error).__name__}).",
                "The bucket needs uniform bucket-level access, the server's account roles/storage.objectViewer.",
            ) from None
        ends_ms = int(ends.timestamp() * 1000) if ends else (now_s + TOKEN_S) * 1000
        return TemporaryCredentials(place.location, KIND, {"oauthToken": token}, ends_ms)


def condition(place: Place) -> str:
    """Only objects below the folder, and only listings of what is below it."""
    key = place.key.strip("/")
    # JSON's way of quoting a text is one of those of the expression language.
    objects = json.dumps(f"projects/_/buckets/{place.bucket}/objects/{key}/", ensure_ascii=False)
    listed = json.dumps(f"{key}/", ensure_ascii=False)
    return (
        f"resource.name.startsWith({objects}) || "
        f"api.getAttribute('storage.googleapis.com/objectListPrefix', '').startsWith({listed})"
    )
