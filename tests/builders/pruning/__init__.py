"""Random tables, random predicates on them, and the truth about both, told row by row without the server's code."""
