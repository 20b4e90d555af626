"""Adapters of the locks under examination, which locks.ini lists."""
