"""What to copy: tables found in a listing, the cut at a moment, the difference to the point before, what it costs."""
