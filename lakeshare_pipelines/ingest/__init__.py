"""From the landing folder to frames that match the contract."""

from lakeshare_pipelines.ingest.delivery import (
    Delivery,
    blame_changed_delivery,
    find_deliveries,
    find_delivery,
    require_unchanged,
)

__all__ = ["Delivery", "blame_changed_delivery", "find_deliveries", "find_delivery", "require_unchanged"]
