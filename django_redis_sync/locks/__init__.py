"""Semaphores, locks, and leases for Python code.

Everything is a semaphore. A lock is a semaphore with one permit. A read/write lock also has an
exclusive mode. A reentrant lock also counts its acquires. An acquire goes through these files, from
top to bottom:

- `semaphore`: the public methods of a Semaphore, and its `with` blocks. `locks` has Lock, RLock and
  ReadWriteLock, which are semaphores with other rules.
- `options`: resolves arguments and settings into an acquire request, sends the request, and turns a
  grant into a lease. `arguments` checks the caller's arguments.
- `engine.drivers`, `protocol.plans`, `engine.server`: carry the request out.
- `lease`: the Lease that an acquire returns. `lease_state` decides, without I/O, when a lease ends
  and when to renew it. The lease renewer (`engine.renewal`) renews it in the background.
- `callers`: the leases that each thread or task acquired, for `release()` and blocks.

Other files:

- `acquire_all`: several semaphores, all or none of them.
- `synchronized`: a decorator that limits the calls of a function. `templates` makes names from the
  arguments of a call.
- `single_flight`: a decorator that shares the result of a call with all equal calls. `flights`
  decides who runs the function and who waits. `results` stores results in a cache.
- `jobs`, `celery`: tasks that a Celery worker holds while no permit is free.
- `transactions`: releases leases after a COMMIT.
- `state_of_name`: the status of a name, and its cool-downs.
- `handle`: the text with which another process adopts a lease.

A lease that code can no longer release must not be renewed. So only the object, thread, or task
that can release a lease has a strong reference to the lease.
"""
