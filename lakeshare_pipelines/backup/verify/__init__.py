"""Proof that the copies are tables: replayed, complete at a version, healed where they were not, opened."""
