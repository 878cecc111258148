"""The catalog that goes with a point: ledger, shares, grants, contracts and Nessie's main, dumped and brought back."""
