"""Write, audit, publish: a set is staged where nobody reads, judged there, and made visible whole.

staged.py the records that travel between the steps; lake.py what a step may touch; staging.py the interface
that iceberg.py and delta.py implement; serveable.py who can read what was staged; stage.py, audit.py, replay.py the
steps; records.py and branches.py what runs leave behind. The last step, from main to the ledger, is
share/publication.py.
"""
