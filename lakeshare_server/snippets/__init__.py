"""Snippets: how one shared table is read with one engine, ready to run by whoever has a profile.

doors.py which of the server's doors works for a table; engines.py which engine goes through which; python.py and
configuration.py the texts. A token is never in them: they read it from the profile, or the engine from its environment.
"""
