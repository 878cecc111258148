"""Retry: a staged set judged again as it stands now, and published when it is green."""

from collections.abc import Sequence
from dataclasses import dataclass

from lakeshare_pipelines.contracts import SetContract
from lakeshare_pipelines.errors import NotAudited
from lakeshare_pipelines.share.publication import publish_or_replay
from lakeshare_pipelines.wap.branches import find, resealed
from lakeshare_pipelines.wap.lake import Lake
from lakeshare_pipelines.wap.replay import judged
from lakeshare_pipelines.wap.verdicts import Verdicts
from lakeshare_server.catalog import Catalog, Publication


@dataclass(frozen=True)
class Outcome:
    """What a retry came to; `publications` is empty when the verdicts are red."""

    verdicts: Verdicts
    publications: tuple[Publication, ...]


def retry(lake: Lake, catalog: Catalog, contracts: Sequence[SetContract], ref: str) -> Outcome:
    """Audit the staging place `ref` again, with whatever was repaired on it, and publish it if it is green.

    Raises:
        UnknownStagingPlace: there is none of that name.
        NotAudited: its run ended before it had written everything; run the partition again instead.
    """
    contract, place = find(lake, contracts, ref)
    if place.attempt is None:
        raise NotAudited(ref, "its run ended before everything was written; run the partition again")
    staged = resealed(lake, contract, place.attempt.staged)
    verdicts = judged(lake, contract, staged)
    if not verdicts.green:
        return Outcome(verdicts, ())
    return Outcome(verdicts, tuple(publish_or_replay(lake, catalog, contract, staged, verdicts)))
