"""How many cases a randomised test draws: few in CI, many by `make campaign`."""

import os

IS_CAMPAIGN = os.environ.get("LAKESHARE_TEST_CAMPAIGN") == "1"


def campaign_size(in_ci: int, in_campaign: int) -> int:
    """Number of random cases: `in_ci` under `make test`, `in_campaign` under `make campaign`."""
    return in_campaign if IS_CAMPAIGN else in_ci
