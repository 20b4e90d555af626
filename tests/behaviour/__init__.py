"""What the primitives and the engine do on real servers, in sync and async code, when all is well
and when it is not."""
