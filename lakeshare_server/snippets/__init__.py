"""Snippets: how one shared table is read with one engine, ready to run by whoever has a profile.

doors.py which of the server's doors works for a table; engines.py which engine goes through which; python.py,
configuration.py and worksheets.py the texts; told.py all engines of one table. A token is never in them: they read it
from the profile, the engine from its environment, or a person puts it where the engine asks for it.
"""
