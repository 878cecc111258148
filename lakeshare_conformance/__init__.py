"""A black-box suite for any server of the Delta Sharing (OpenSharing) protocol, over HTTP alone.

`cases/` holds what is tried, a file for each subject; `ground.py` finds what a server offers to try it on,
`runner.py` tries it, `report.py` says what came of it. Nothing here knows the inside of a server.
"""
