"""The way back: a point's tables copied, rewritten, registered and verified somewhere; and drills of it."""
