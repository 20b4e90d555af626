"""What Python code takes: semaphores, locks, and leases.

Everything is a semaphore: a lock has one permit, a read/write lock an exclusive mode, a reentrant
lock counts. An acquire goes through these files, from top to bottom:

- `semaphore`: the public methods of a Semaphore, and its `with` blocks. `locks` has Lock, RLock and
  ReadWriteLock, which are semaphores with other rules.
- `acquiring`: asks Redis for a lease and makes one of the answer.
- `options`: resolves arguments and settings into an acquire request.
- `engine.drivers`, `protocol.plans`, `engine.server`: carry the request out.
- `lease`: the Lease that comes of it. `lease_state` decides when it ends and when it is renewed,
  without I/O; the lease renewer (`engine.renewal`) renews it in the background.
- `callers`: which thread or task took what through an object, for `release()` and blocks.

Beside that:

- `acquire_all`: several semaphores, all or none of them.
- `synchronized`: a decorator that limits the calls of a function.
- `transactions`: releases after a COMMIT.
- `handle`: the text by which another process adopts a lease.

The rule that everything here keeps: a lease that code can no longer release is not renewed. So
leases are referred to by the object, thread or task that can release them, and by nothing else.
"""
