"""From the landing folder to frames that match the contract."""

from lakeshare_pipelines.ingest.delivery import Delivery as Delivery
from lakeshare_pipelines.ingest.delivery import blame_changed_delivery as blame_changed_delivery
from lakeshare_pipelines.ingest.delivery import find_deliveries as find_deliveries
from lakeshare_pipelines.ingest.delivery import find_deliveries_of_run as find_deliveries_of_run
from lakeshare_pipelines.ingest.delivery import find_delivery as find_delivery
from lakeshare_pipelines.ingest.delivery import require_unchanged as require_unchanged
