"""From the landing folder to frames that match the contract.

delivery.py what has arrived; landing_files.py which file belongs to which table; integrity.py whether a file can be
read at all; frame.py reads a delivery with Spark; samples.py makes deliveries for trying things out.
"""

from lakeshare_pipelines.ingest.delivery import (
    Delivery,
    blame_changed_delivery,
    find_deliveries,
    find_delivery,
    require_unchanged,
)

__all__ = ["Delivery", "blame_changed_delivery", "find_deliveries", "find_delivery", "require_unchanged"]
