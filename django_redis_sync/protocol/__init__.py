"""The protocol: key names, Lua scripts, and the plans that run them.

This package imports neither redis-py nor Django.
"""
