"""Which versions of a table recipients can read: the ledger's publications, or those found in storage."""
