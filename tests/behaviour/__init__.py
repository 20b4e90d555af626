"""The primitives and the engine on real servers, in sync and async code, with faults and without
faults."""
