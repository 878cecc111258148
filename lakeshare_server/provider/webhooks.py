"""Sends the events of webhooks: signed by the Standard Webhooks scheme, with retries, in threads of their own.

What is sent, and when, is in `catalog.webhooks`; the body of an event is in `protocol.feed`.
"""

import base64
import hashlib
import hmac
import http.client
import json
import logging
import random
import secrets
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit

from sqlalchemy.exc import SQLAlchemyError

from lakeshare_server.catalog import Catalog, webhooks
from lakeshare_server.catalog.feed import FeedEvent
from lakeshare_server.catalog.sharing import Edit
from lakeshare_server.errors import BadRequest, LakeshareError, Unavailable
from lakeshare_server.locations import is_web_address
from lakeshare_server.outbound import GuardedClient
from lakeshare_server.protocol.feed import CLOUD_EVENT, TEST_EVENT, make_cloud_event, make_test_event
from lakeshare_server.protocol.tokens import TokenSealer
from lakeshare_server.settings import ServerSettings
from lakeshare_server.storage import load_key
from lakeshare_server.versions import Versions

SECRET_PREFIX = "whsec_"  # noqa: S105  of every secret of Standard Webhooks
SECRET_BYTES = 32
MAX_RESPONSE_BYTES = 1 << 10
# The first retry is after this time, and each further one after twice the time, up to the longest.
FIRST_RETRY_S, LONGEST_RETRY_S = 5.0, 600.0
JITTER = 0.2
# A lease outlasts the attempt by this, so that clocks of servers may differ.
LEASE_MARGIN_S = 30.0
# Deliveries of one webhook before another one gets the thread.
MAX_IN_TURN = 20
PURGE_EVERY = 1000  # turns
TOO_MANY = 429

_log = logging.getLogger(__name__)


class WebhookSecrets:
    """Makes the secrets of webhooks, and seals them with the server's key, so that a dump of the database has none."""

    def __init__(self, key: bytes) -> None:
        self._sealer = TokenSealer(key, "webhook secret v1")

    def make(self) -> tuple[str, str]:
        """A new secret, and its sealed form."""
        secret = SECRET_PREFIX + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()
        return secret, self._sealer.seal_bytes(secret.encode())

    def open(self, sealed: str) -> str | None:
        """The secret; None if another key sealed it."""
        opened = self._sealer.open_bytes(sealed)
        return None if opened is None else opened.decode()


def sign_event(secret: str, event_id: str, timestamp: int, body: bytes) -> str:
    """A signature of the Standard Webhooks scheme: HMAC-SHA256 of the id, the time in seconds and the body."""
    try:
        key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except ValueError as error:
        raise BadRequest("secret", "…", "Give the secret as it was shown, from whsec_ on.") from error
    signed = f"{event_id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()


class WebhookRegistry:
    """Adds and tests webhooks for administrators, over the server's key and the rules for URLs."""

    def __init__(self, settings: ServerSettings, key: bytes | None = None) -> None:
        self._settings = settings
        self._secrets = WebhookSecrets(load_key(settings) if key is None else key)
        self._client = GuardedClient(settings.webhook_private_hosts)

    @property
    def retry_for(self) -> timedelta:
        """How long a delivery is tried."""
        return timedelta(hours=self._settings.webhook_retry_hours)

    def require_url(self, url: str) -> None:
        """Refuses a URL that events are not sent to: without TLS, in a private network, unknown. Looks its host up.

        Raises:
            BadRequest: the URL cannot be used; LAKESHARE_WEBHOOK_PRIVATE_HOSTS allows hosts.
        """
        hint = "Give an https:// URL of a host with a public address, without user and fragment."
        is_plain = url.isascii() and url.isprintable() and not {" ", "#"} & set(url)
        if not is_plain or not is_web_address(url) or urlsplit(url).username is not None:
            raise BadRequest("url", url, hint)
        try:
            self._client.require_allowed(url)
        except (OSError, ValueError) as error:
            also = "LAKESHARE_WEBHOOK_PRIVATE_HOSTS allows hosts of your own network."
            raise BadRequest("url", url, f"It is refused: {error}. {hint} {also}") from error

    def add(
        self, edit: Edit, recipient: str, url: str, *, share: str | None = None, comment: str | None = None
    ) -> tuple[webhooks.Webhook, str]:
        """Adds a webhook, after `require_url`; returns it with its secret, which is shown once."""
        secret, sealed = self._secrets.make()
        return webhooks.add_webhook(edit, recipient, url, sealed, share=share, comment=comment), secret

    def rotate(
        self, edit: Edit, webhook_id: str, keep_old_for: timedelta, recipient: str | None = None
    ) -> tuple[webhooks.Webhook, str]:
        """Gives a webhook a new secret, which is returned once; the old one stays valid for the grace time."""
        secret, sealed = self._secrets.make()
        return webhooks.rotate_webhook_secret(edit, webhook_id, sealed, keep_old_for, recipient), secret

    def test(self, edit: Edit, webhook_id: str, recipient: str | None = None) -> str:
        """Queues a test event, which a server sends; returns its id."""
        webhook, event_id = webhooks.get_webhook(edit.session, webhook_id, recipient), str(uuid.uuid4())
        event = make_test_event(event_id, edit.at, self._settings, webhook.recipient)
        webhooks.queue_event(edit, webhook, event_id, TEST_EVENT, json.dumps(event), self.retry_for)
        return event_id


class WebhookDispatcher:
    """Queues new events and sends those that are due; one for each process, several processes share the work.

    A slow or dead consumer holds one thread of the pool for the time of an attempt, and then has to wait.
    """

    def __init__(
        self,
        catalog: Catalog,
        versions: Versions,
        settings: ServerSettings,
        key: bytes,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._catalog, self._versions, self._settings = catalog, versions, settings
        self._now, self._draw = now, draw
        self._secrets = WebhookSecrets(key)
        self._client = GuardedClient(settings.webhook_private_hosts)
        lease_for = timedelta(seconds=settings.webhook_answer_s + LEASE_MARGIN_S)
        self._outbox = webhooks.Outbox(catalog, timedelta(hours=settings.webhook_retry_hours), lease_for)
        self._planned_generation: int | None = None
        self._turns = 0
        self._sending: set[Future[None]] = set()
        self._pool = ThreadPoolExecutor(settings.webhook_senders, "webhooks")
        # A slow store of a followed table must not delay the events of other tables.
        self._looking: Future[None] | None = None
        self._looker = ThreadPoolExecutor(1, "webhooks-followed")
        self._stopping, self._wake = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, name="webhooks", daemon=True)

    def start(self) -> None:
        """Starts its thread, unless the settings turn webhooks off."""
        if self._settings.webhook_interval_s > 0:
            self._thread.start()

    def stop(self) -> None:
        """Stops after the attempts in progress; what is pending stays in the database."""
        self._stopping.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()
        for pool in (self._pool, self._looker):
            pool.shutdown(wait=True, cancel_futures=True)

    def turn(self) -> None:
        """Queues new events, and gives webhooks with due deliveries to free threads, without waiting for them."""
        self._turns += 1
        if self._turns % PURGE_EVERY == 0:
            self._outbox.purge(self._now())
        self._plan()
        self._sending = {future for future in self._sending if not future.done()}
        while len(self._sending) < self._settings.webhook_senders and not self._stopping.is_set():
            lease = self._outbox.claim(self._now())
            if lease is None:
                return
            future = self._pool.submit(self._send_due, lease)
            future.add_done_callback(_log_failure)
            future.add_done_callback(lambda _: self._wake.set())
            self._sending.add(future)

    def _work(self) -> None:
        while not self._stopping.is_set():
            try:
                self.turn()
            # The process has no other dispatcher: after any error the next turn is tried.
            except Exception as error:
                is_expected = isinstance(error, LakeshareError | SQLAlchemyError)
                _log.warning("webhooks wait, a turn failed: %s", error, exc_info=not is_expected)
                self._stopping.wait(self._settings.webhook_interval_s)
            else:
                # A thread that becomes free may have more to send.
                self._wake.wait(self._settings.webhook_interval_s)
                self._wake.clear()

    def _plan(self) -> None:
        generation = self._catalog.generation()
        keys = self._outbox.list_keys(self._now())
        if keys and (self._looking is None or self._looking.done()):
            self._looking = self._looker.submit(self._look_at_followed)
            self._looking.add_done_callback(_log_failure)
        # Each publication and each notice begins a generation.
        if generation == self._planned_generation:
            return
        for key in keys:
            while self._outbox.plan(key, self._make_body, self._now()):
                pass
        self._planned_generation = generation

    def _look_at_followed(self) -> None:
        """Numbers the new versions of followed tables: their numbers are in the ledger then."""
        for table in self._outbox.list_followed(self._now()):
            if self._stopping.is_set():
                return
            try:
                self._versions.of(table).latest()
            except LakeshareError as error:
                _log.info("webhooks: %s has no news: %s", table, error)

    def _make_body(self, event: FeedEvent) -> str:
        return json.dumps(make_cloud_event(event, self._settings), ensure_ascii=False, separators=(",", ":"))

    def _send_due(self, lease: webhooks.SendingLease) -> None:
        """Sends the due deliveries of a webhook one after the other, the oldest first."""
        try:
            failures = lease.failures
            for _ in range(MAX_IN_TURN):
                delivery = None if self._stopping.is_set() else self._outbox.next_due(lease, self._now())
                if delivery is None:
                    break
                outcome = self._attempt(lease, delivery, failures)
                failures = 0 if outcome.is_delivered else failures + 1
                self._outbox.record(lease, delivery, outcome, self._now())
            self._outbox.release(lease, self._now())
        except (Unavailable, SQLAlchemyError) as error:
            # The lease ends by itself, and the delivery is tried again.
            _log.warning("webhooks: a result could not be recorded: %s", error)

    def _attempt(
        self, lease: webhooks.SendingLease, delivery: webhooks.Delivery, failures: int
    ) -> webhooks.Outcome:
        status, error = None, None
        try:
            status = self._post(lease, delivery)
        except (OSError, http.client.HTTPException, ValueError, BadRequest) as failure:
            error = f"{type(failure).__name__}: {failure}"
        is_delivered = status is not None and 200 <= status < 300
        if status is not None and not is_delivered:
            follows = ": redirects are not followed" if 300 <= status < 400 else ""
            error = f"it answered {status}{follows}"
        is_outage = status is None or status >= 500 or status == TOO_MANY
        now, retry_at = self._now(), self._now() + self._delay(delivery.attempts)
        # Shorter than the delay of the delivery, so that one that always fails does not hold the others up.
        paused_until = now + self._delay(failures) / 2
        return webhooks.Outcome(is_delivered, is_outage, status, error, retry_at, paused_until)

    def _post(self, lease: webhooks.SendingLease, delivery: webhooks.Delivery) -> int:
        opened = [self._secrets.open(sealed) for sealed in lease.secrets]
        if opened[0] is None:
            raise BadRequest("LAKESHARE_SIGNING_KEY", "another key", "Rotate the secret of the webhook.")
        timestamp, body = int(self._now().timestamp()), delivery.body.encode()
        signatures = [
            sign_event(secret, delivery.event_id, timestamp, body) for secret in opened if secret is not None
        ]
        headers = {
            "Content-Type": f"{CLOUD_EVENT}; charset=utf-8",
            "User-Agent": "lakeshare",
            "webhook-id": delivery.event_id,
            "webhook-timestamp": str(timestamp),
            "webhook-signature": " ".join(signatures),
        }
        within_s = self._settings.webhook_answer_s
        response = self._client.request(
            "POST", lease.url, headers, body, within_s=within_s, max_bytes=MAX_RESPONSE_BYTES
        )
        return response.status

    def _delay(self, failures: int) -> timedelta:
        """The time before the next attempt, with jitter, after so many failures before the last one."""
        delay_s = min(FIRST_RETRY_S * 2.0 ** min(failures, 30), LONGEST_RETRY_S)
        return timedelta(seconds=delay_s * (1 + JITTER * (2 * self._draw() - 1)))


def _log_failure(future: Future[None]) -> None:
    error = None if future.cancelled() else future.exception()
    if error is not None:
        # The lease ends by itself: what was not sent is tried again.
        _log.error("webhooks: %s: %s", type(error).__name__, error, exc_info=error)
