"""Nessie: the client, and the embedded server process."""
