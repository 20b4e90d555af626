"""An explicit-state model checker for the protocol.

It runs the real Lua scripts (through lupa) on a small Redis in Python and the real plans as
clients, and explores what a network, a scheduler and an operator can do to them. Nothing of the
protocol is written down a second time, so nothing can drift.
"""
