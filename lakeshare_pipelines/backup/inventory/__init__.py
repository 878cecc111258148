"""Listings of a store, from its own inventory or from ours, in one normalised form."""
