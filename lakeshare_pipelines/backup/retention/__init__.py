"""How long points stay: grandfather, father, son; locks set and extended; what nobody needs any more."""
