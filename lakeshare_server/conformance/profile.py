"""The profile file of a recipient: where the server is, and the token for it."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lakeshare_server.errors import BadRequest


@dataclass(frozen=True)
class Profile:
    """What the suite needs of a profile; `fields` are as they stand in the file."""

    endpoint: str
    bearer_token: str
    fields: dict[str, Any]


def read_profile(path: Path, option: str = "PROFILE") -> Profile:
    """Read a profile with a bearer token; `option` names it in errors.

    Raises:
        BadRequest: the file cannot be read, or is not such a profile.
    """
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadRequest(option, str(path), f"Give a profile file ({type(error).__name__}).") from error
    if not isinstance(fields, dict):
        raise BadRequest(option, str(path), "A profile is a JSON object.")
    for name in ("endpoint", "bearerToken"):
        if not isinstance(fields.get(name), str) or not fields[name]:
            raise BadRequest(
                option,
                str(path),
                f"The suite needs a profile with endpoint and bearerToken; {name} is missing.",
            )
    return Profile(fields["endpoint"].rstrip("/"), fields["bearerToken"], fields)
