"""One file per resource of the protocol; each translates a request into calls and the result into a response."""
