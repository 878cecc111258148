"""The sharing server: speaks OpenSharing (the Delta Sharing protocol) for what the pipelines published."""
