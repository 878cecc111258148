"""Who may read what: from a bearer token to its recipient, and to the recipient's view of a table."""
