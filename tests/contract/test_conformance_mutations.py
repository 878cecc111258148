"""The conformance suite, run through a proxy with one fault in front of our server, catches the fault.

A mutation counts as caught when a `must` fails. The faults are data: `tests/fakes/faults.yaml`.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from lakeshare_conformance.client import Client, ConformanceError, Profile
from lakeshare_conformance.report import run_cases, select_cases
from lakeshare_conformance.targets import discover_targets
from tests.builders.campaign import IS_CAMPAIGN
from tests.builders.sharing import a_provider, a_server
from tests.fakes.model_on_disk import ModelRecipients, share_model_tables
from tests.fakes.mutating_proxy import Fault, MutatingProxy, a_mutating_proxy, read_faults

WANTED_FAULTS, WANTED_SHARE = 80, 0.95
# Under `make test` two groups of cases are tried on one table with these; under `make campaign` everything is.
IN_CI = ("PUT is taken", "endingVersion of changes is exclusive", "a long declared integer")
TABLE, GROUPS = (None, []) if IS_CAMPAIGN else ("main.Orders", ["data-files", "change-bounds"])


@pytest.fixture(scope="module")
def recipients_and_proxy() -> Iterator[tuple[ModelRecipients, MutatingProxy]]:
    with tempfile.TemporaryDirectory() as folder:
        provider = a_provider(Path(folder))
        recipients = share_model_tables(provider, Path(folder))
        with a_server(provider) as server:
            parts = urlsplit(server.url)
            with a_mutating_proxy(f"{parts.scheme}://{parts.netloc}", parts.path) as proxy:
                yield recipients, proxy


def failed_must(recipients: ModelRecipients, proxy: MutatingProxy, fault: Fault | None) -> str:
    """The first case of level must that fails with a fault, or why listings cannot be read; empty if all pass.

    The suite ends at that case: all of it takes a minute, and a hundred faults an hour and a half.
    """
    proxy.fault, proxy.hits = fault, 0
    endpoint = f"{proxy.root}{proxy.prefix}"
    own, foreign, expired = (
        Profile(endpoint, token, {"shareCredentialsVersion": 1, "endpoint": endpoint, "bearerToken": token})
        for token in (recipients.token, recipients.foreign_token, recipients.expired_token)
    )
    with Client(own) as client:
        try:
            targets = discover_targets(client, own, table=TABLE, foreign=foreign, expired=expired)
            outcomes = (run_cases([case], targets)[0] for case in select_cases(GROUPS))
            return next((one.case.name for one in outcomes if one.fails_the_run), "")
        except ConformanceError as error:
            return str(error)


def test_the_faults_are_many_and_have_names_of_their_own() -> None:
    faults = read_faults()
    assert len(faults) >= WANTED_FAULTS
    assert len({fault.name for fault in faults}) == len(faults)


@pytest.mark.campaign
@pytest.mark.timeout(7200)
def test_single_faults_are_caught(recipients_and_proxy: tuple[ModelRecipients, MutatingProxy]) -> None:
    recipients, proxy = recipients_and_proxy
    assert failed_must(recipients, proxy, None) == "", "the proxy itself changes something"
    faults = read_faults(recipients.expired_token)
    tried = faults if IS_CAMPAIGN else [fault for fault in faults if fault.name in IN_CI]
    missed, without_effect = [], []
    for fault in tried:
        failed = failed_must(recipients, proxy, fault)
        print(f"{fault.name}: {proxy.hits} messages changed; {failed or 'nothing'} failed")
        if not failed:
            missed.append(fault.name)
        if not proxy.hits:
            without_effect.append(fault.name)
    assert without_effect == [], "these faults concern no request of the suite"
    assert len(missed) <= (1 - WANTED_SHARE) * len(tried), missed
