"""Who may read what: from a bearer token to its recipient, to the view of a table, and to the work of async queries."""
