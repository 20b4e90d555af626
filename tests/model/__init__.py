"""An explicit-state model checker for the protocol.

The model runs the package's Lua scripts (with lupa) on an imitation of Redis in Python. The model's
clients run the package's plans: generators that yield each step of an acquire, a renewal, or a
release. The checker tries every order of these steps, with lost messages, dead clients, and
operator actions. The model uses the package's code, so the two can't differ.
"""
