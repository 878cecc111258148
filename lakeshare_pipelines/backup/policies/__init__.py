"""Who may do what in the two accounts of a backup: policies as documents, what they mean, whether they are there."""
