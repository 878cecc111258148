"""Write, audit, publish: stage a set where no reader sees it, audit it, and publish it as a whole.

staged.py: records, the lake and the quarantine; stage.py: the staging step and its interface, implemented by iceberg.py
and delta.py; checks.py, serveable.py and audit.py: the audit. share/publication.py publishes.
"""
