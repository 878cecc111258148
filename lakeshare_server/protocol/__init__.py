"""The wire: requests, capabilities, predicates, paging tokens and the lines of an answer."""
