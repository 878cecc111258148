"""Delta logs, as input of the file index and of the index of changes."""
