"""An explicit-state model checker for the protocol.

It runs the real Lua scripts (with lupa) on a small Redis in Python, with the real plans as clients.
It explores all effects of a network, a scheduler, and an operator. There is no second description
of the protocol that could differ from the real one.
"""
