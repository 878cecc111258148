"""Who may read what: tokens, grants and the audit log of requests."""
