"""From main to recipients: pin what landed, index its files, write the ledger; apply the declared shares."""
