"""Backups: a listing of a store, a plan, copies, tables proved to open, a backup point; and the way back.

Reads like the path of the data: declared, stores, rows, workspace, listing, plan, copy, verify, points, restore.
"""
