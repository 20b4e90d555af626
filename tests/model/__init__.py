"""An explicit-state model checker for the protocol.

The model runs the package's Lua scripts (with lupa) on a small Redis in Python. Its clients run the
package's plans: generators that yield each step of an acquire, a renewal, or a release. The checker
tries every order of these steps, with lost messages, dead clients, and operator actions. The
protocol is not written down a second time, so the model can't differ from the code.
"""
