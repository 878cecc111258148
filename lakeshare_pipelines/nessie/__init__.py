"""Nessie: the embedded server process and the client; nobody else speaks to it."""
