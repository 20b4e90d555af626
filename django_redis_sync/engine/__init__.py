"""The layer that carries out plans on the project's Redis servers.

A plan (see `protocol/plans.py`) is a generator that yields the steps of one operation, such as an
acquire. The engine sends each step to Redis, in sync code and on event loops. It also renews leases
in the background. The packages `locks`, `limits` and `operators` use the engine.

Sending a step
    drivers       `drive` carries out a plan in sync code, `adrive` in async code. Also sends plain
                  Redis commands.
    calls         `run` and `arun` carry out plans of calls: those of requests and single_flight.
    memory        Counts permits in this process, without Redis: for development and tests.
    server        `server_of(alias)` and `async_server_of(alias)` return an object that performs
                  steps on the server of a cache alias.
    cluster/      Perform a step on a Redis Cluster: find the node of a name, follow redirections.
    quorum/       Perform a step on several independent servers, of which a majority decides.
    pools         Connections for sync code, from the project's pool or a private pool.
    batching      A connection for async code. Sends several steps at once, as a batch.
    backends      The project's caches: a class for each supported backend. Only this module
                  imports django_redis.
    clients       redis.asyncio clients. Only this module imports that library.
    wire          The clock, Redis's wire format, and the meaning of redis-py's exceptions.

Waiting
    hub           Wakes async waiters over one Pub/Sub connection per event loop. Sync waiters
                  don't use the hub.
    loops         Tasks and time limits on event loops. Closes connections when a loop ends.

In the background, per process and alias
    renewal       Renews leases, and reports lost leases.
    schedule      A heap of the times at which leases or waiters are due.
    queues        Threads that send renewals to a node, and a thread that retries failed cleanups.
    housekeeping  A thread that runs the chores of `names`, `overrides`, and `statistics`.
    names         Writes which names are in use and since when. Writes and reads labels of holders.
    overrides     Reads which policies operators have paused or resized.
    statistics    Counts the outcomes of acquires, and the ends of leases.
    mutex         Locks and starts of threads that a signal handler's exception can't leave halfway.
    threads       The daemon threads: how they start, wake, and finish at exit. Callbacks and
                  signal receivers run on other threads.
"""
