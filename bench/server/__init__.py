"""How fast the sharing server answers: against the limit of the machine and against a server as most are written."""
