"""The sharing DDL: a script becomes statements, statements become operations on the catalog.

The grammar is in `sharing.lark`. Who may read what, and what a rule means, is decided elsewhere.
"""
