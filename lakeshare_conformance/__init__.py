"""A black-box suite for any server of the Delta Sharing (OpenSharing) protocol, over HTTP alone.

`cases/` has the cases, `targets.py` what they run on, `wire.py` the objects of the protocol, `report.py` the results.
"""
