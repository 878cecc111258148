"""The `lakeshare` commands of the server, one file for each subject; each imports what it needs when it runs."""

from lakeshare_server.cli.main import add_commands, main

__all__ = ["add_commands", "main"]
