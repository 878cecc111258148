"""Engines that copy the objects of a plan, and their reports."""
