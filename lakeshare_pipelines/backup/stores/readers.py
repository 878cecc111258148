"""How readers that are none of ours reach a store: deltalake (object_store) and pyiceberg, by their own names."""

from lakeshare_pipelines.backup.stores.address import StoreAddress

PROPERTIES = {
    "AWS_REGION": "s3.region",
    "AWS_ACCESS_KEY_ID": "s3.access-key-id",
    "AWS_SECRET_ACCESS_KEY": "s3.secret-access-key",
    "AWS_SESSION_TOKEN": "s3.session-token",
    "AWS_ENDPOINT_URL": "s3.endpoint",
}


def storage_options(address: StoreAddress) -> dict[str, str]:
    """What object_store needs to reach a store; empty for a folder."""
    if address.kind == "folder":
        return {}
    import boto3

    session = boto3.Session(profile_name=address.profile, region_name=address.region)
    options = {"AWS_REGION": session.region_name or "us-east-1"}
    credentials = session.get_credentials()
    if credentials is not None:
        frozen = credentials.get_frozen_credentials()
        options |= {"AWS_ACCESS_KEY_ID": frozen.access_key, "AWS_SECRET_ACCESS_KEY": frozen.secret_key}
        if frozen.token:
            options["AWS_SESSION_TOKEN"] = frozen.token
    if address.endpoint:
        options["AWS_ENDPOINT_URL"] = str(address.endpoint)
        if str(address.endpoint).startswith("http://"):
            options["AWS_ALLOW_HTTP"] = "true"
    return options


def file_properties(address: StoreAddress) -> dict[str, str]:
    """What pyiceberg needs to reach a store; empty for a folder."""
    return {PROPERTIES[name]: said for name, said in storage_options(address).items() if name in PROPERTIES}
