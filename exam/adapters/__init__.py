"""Locks that can be examined: a page for each family. The list is exam/entries.py."""
