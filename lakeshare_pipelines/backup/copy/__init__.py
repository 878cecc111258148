"""Copying what a plan says, with one of several engines, and the report of it."""
