"""Logs of the server and the commands: as text, or one JSON object per line with the ids of request, trace and run.

Neither has secrets: values that give access are replaced, wherever a message or an error quotes them.
"""

import json
import logging
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Literal

from lakeshare_server.telemetry.tracing import Attribute, current_trace_id, span

LogFormat = Literal["text", "json"]
REDACTED = "REDACTED"
# Authorization headers, parameters of signed URLs, activation links, passwords in URLs, tokens and keys of lakeshare.
SECRETS = re.compile(
    r"""(?ix)
    \b(?P<scheme>bearer|basic)\s+[\w.~+/=-]{8,}
    | (?P<parameter>(?:\bx-(?:amz|goog)-(?:signature|credential|security-token)
        |(?<=[?&])(?:signature|sig|awsaccesskeyid|access_token|refresh_token|client_secret|code))=)[^&\s"'<>]+
    | (?P<link>/activate/)[^\s"'/?\#<>]+
    | (?P<user>\b[a-z][a-z0-9+.-]*://[^\s/:@"']*:)[^\s/@"']+(?=@)
    | (?P<key>"?(?:bearer_?token|client_?secret|access_?token|secret_?access_?key|password)"?\s*[:=]\s*"?)[^\s"',}]+
    | \blsa\.[\w.~+/=-]{8,} | \blakeshare-admin-[\w-]{8,} | \beyJ[\w-]{8,}\.[\w-]+\.[\w-]*
    """
)
REQUEST_ID: ContextVar[str | None] = ContextVar("lakeshare_request_id", default=None)
_RUN_ID: ContextVar[str | None] = ContextVar("lakeshare_run_id", default=None)


@contextmanager
def run_scope(run_id: str) -> Iterator[None]:
    """Log records of the block have the id of a run."""
    token = _RUN_ID.set(run_id)
    try:
        yield
    finally:
        _RUN_ID.reset(token)


@contextmanager
def run_step(name: str, run_id: str, parent: str | None = None, **attributes: Attribute) -> Iterator[None]:
    """A step of a run, like `stage`, as a span; `parent` is the trace of an earlier step in another process."""
    with run_scope(run_id), span(f"lakeshare.{name}", parent, run_id=run_id, **attributes):
        yield


def redact(text: str) -> str:
    """The text without values that give access."""
    return SECRETS.sub(_replace_secret, text)


def _replace_secret(found: re.Match[str]) -> str:
    named = found["parameter"] or found["link"] or found["user"] or found["key"]
    if named is not None:
        return f"{named}{REDACTED}"
    return f"{found['scheme']} {REDACTED}" if found["scheme"] else REDACTED


class TextFormatter(logging.Formatter):
    """The message and the stack trace, as Python's handler of last resort has them."""

    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record))


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, logger, message, and what is known of request, trace, run and error."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redact(record.getMessage()),
            "request_id": REQUEST_ID.get(),
            "trace_id": current_trace_id(),
            "run_id": _RUN_ID.get(),
        }
        if record.exc_info and record.exc_info[0] is not None:
            fields["error"] = record.exc_info[0].__name__
            fields["stack"] = redact(self.formatException(record.exc_info))
        known = {name: value for name, value in fields.items() if value is not None}
        return json.dumps(known, ensure_ascii=False)


class _FormatOnUse(logging.Formatter):
    """Finds the format with the first record: commands that log nothing read no settings for it."""

    def __init__(self, find_format: Callable[[], LogFormat]) -> None:
        super().__init__()
        self._find_format = find_format
        self._formatter: logging.Formatter | None = None

    def format(self, record: logging.LogRecord) -> str:
        if self._formatter is None:
            self._formatter = JsonFormatter() if self._find_format() == "json" else TextFormatter()
        return self._formatter.format(record)


def configure_logs(find_format: Callable[[], LogFormat]) -> None:
    """Sends warnings and errors of this process to stderr; does nothing if the root logger has handlers."""
    root = logging.getLogger()
    if root.handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(_is_unhandled)
    handler.setFormatter(_FormatOnUse(find_format))
    root.addHandler(handler)


def _is_unhandled(record: logging.LogRecord) -> bool:
    """Whether no handler below the root has the record: progress of commands, and Dagster's own console."""
    logger: logging.Logger | None = logging.getLogger(record.name)
    while logger is not None and logger.parent is not None:
        if logger.handlers:
            return False
        logger = logger.parent
    return True
