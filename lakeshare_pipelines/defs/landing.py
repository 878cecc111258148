"""The S3 store of deliveries as a resource of Dagster, with the deadlines and the credentials of all stores."""

from typing import Any

from dagster_aws.s3 import S3Resource

from lakeshare_pipelines.settings import LakeSettings
from lakeshare_server.storage import Stores


class LandingResource(S3Resource):
    """Dagster's S3 resource at the endpoint and region of the landing area.

    Sensors get the stores that list deliveries; a function with an argument of this class gets the resource itself.
    Deadlines and attempts are those of `lakeshare_server.storage`, and not `max_attempts`.
    """

    def open_stores(self) -> Stores:
        own = {"s3_endpoint": self.endpoint_url, "s3_region": self.region_name}
        return Stores(LakeSettings().landing_stores.model_copy(update=own))

    def get_client(self) -> Any:
        """Returns a client of boto3, whose keys were found within a deadline.

        Raises:
            NoKeys: there are no usable credentials.
            Unavailable: the chain of credentials does not answer.
        """
        access = self.open_stores().s3
        access.keys()
        return access.client(
            "s3", self.region_name, self.endpoint_url, path_style=self.endpoint_url is not None
        )

    def get_object_to_set_on_execution_context(self) -> Stores:
        return self.open_stores()
