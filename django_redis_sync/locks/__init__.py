"""What Python code takes: semaphores, locks, and leases.

Everything is a semaphore: a lock has one permit, a read/write lock an exclusive mode, a reentrant
lock counts. An acquire goes through these files, from top to bottom:

- `semaphore`: the public methods of a Semaphore, and its `with` blocks. `locks` has Lock, RLock and
  ReadWriteLock, which are semaphores with other rules.
- `options`: resolves arguments and settings into an acquire request, sends it, and turns a grant
  into a lease. `arguments` checks what the caller gave.
- `engine.drivers`, `protocol.plans`, `engine.server`: carry the request out.
- `lease`: the Lease that it returns. `lease_state` decides when it ends and when it is renewed,
  without I/O; the lease renewer (`engine.renewal`) renews it in the background.
- `callers`: the leases that each thread or task acquired, for `release()` and blocks.

Beside that:

- `acquire_all`: several semaphores, all or none of them.
- `synchronized`: a decorator that limits the calls of a function.
- `jobs`, `celery`: tasks that are sent again by their task queue while no permit is free.
- `transactions`: releases after a COMMIT.
- `handle`: the text with which another process adopts a lease.
- `shares`: the text of a share.

A lease that code can no longer release must not be renewed. So only the object, thread, or task
that can release a lease has a strong reference to it.
"""
