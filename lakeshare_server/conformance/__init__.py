"""A black-box suite for any server of the Delta Sharing protocol, over HTTP alone."""
