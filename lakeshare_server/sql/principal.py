"""In whose name a session on this machine speaks."""

import os
import pwd


def operating_system_user() -> str:
    """Who runs this process, as the operating system knows, whatever the environment says."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # in a container, say, whose user has no name
        return f"uid {os.getuid()}"
