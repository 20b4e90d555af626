"""The step of Celery's consumer that holds limited tasks in the worker's main process.

A task is held as Celery holds a task with a countdown: unacknowledged, with a prefetch count that
is higher by one. The oldest few of each name and share wait for their permit in Redis. With its
permit, a task goes to the pool. If the connection is lost or the worker stops, the worker forgets
the tasks that it holds, and the broker delivers them again.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Any

from celery import bootsteps

from ...engine.mutex import Mutex
from ...engine.wire import clock
from ...logs import logger
from ..jobs import Handle, Job, giving_back, noting
from ..semaphore import Semaphore
from . import undocumented
from .lines import Held, Key, Lines
from .tasks import HANDLE, job_of, semaphore_of
from .threads import Inbox, Sender
from .waiting import Waiting

#: Max tasks that a worker holds by default, about 9 KB each. With more, it fetches no more tasks,
#: limited or not, than without this step. Celery's `worker_eta_task_limit` can lower the number.
MOST_HELD = 10_000
#: Max seconds for which a task is held. Then it is sent again, before the broker loses patience:
#: after its `visibility_timeout`, it would deliver the task to another worker.
LONGEST_HOLD, VISIBILITY_PART = 600.0, 3
_VISIBILITY_TIMEOUT = 1800.0  # the shortest default of Celery's brokers
#: Seconds for which a granted task waits for a process of the pool. Then its permit is released.
_READY = 2.0
#: With quorum queues, the prefetch count of each further consumer.
_WIDER = 32
#: Max names of which Redis knows how many tasks this worker holds: those with the most.
_TOLD = 100
#: Seconds for which a worker that stops lets its waiters leave the queues.
_LEAVING = 1.0


class HoldLimitedTasks(bootsteps.StartStopStep):  # type: ignore[misc]
    """Hold the tasks with on_full="hold" until they have a permit."""

    requires = (undocumented.Tasks,)

    def __init__(self, consumer: Any, **options: Any) -> None:
        super().__init__(consumer, **options)
        self._consumer = consumer
        self._lock = Mutex()  # without an event loop of Celery, several threads come here
        self._inbox, self._sender = Inbox(self._lock), Sender()
        self._waiting = Waiting(getattr(consumer.pool, "is_green", False))
        self._limited: dict[Any, Any] = {}
        self._warned: set[str] = set()
        self._all: dict[Held, None] = {}
        self._by_id: dict[str, Held] = {}
        self._lines = Lines()
        self._running: dict[Any, None] = {}  # limited requests in the pool
        #: Tasks with a permit for which the pool has no free process yet: (Held, Handle, since).
        self._ready: deque[tuple[Held, Handle, float]] = deque()
        #: The lines that found no free process at the last tick.
        self._busy: set[Key] = set()
        #: The names of which Redis knows how many tasks this worker holds.
        self._told: dict[str, Semaphore] = {}
        self._further: list[Any] = []
        self._static_prefetch: bool | None = None
        self._timer: Any = None

    def include_if(self, consumer: Any) -> bool:
        lacks = undocumented.missing(consumer)
        if lacks:
            logger.warning(
                'tasks with on_full="hold" wait in the processes of the pool, because this worker '
                "can't hold them: %s",
                lacks,
            )
        return not lacks

    def create(self, consumer: Any) -> None:
        self._process = undocumented.intercept(consumer, self._take)

    def register_with_event_loop(self, consumer: Any, hub: Any) -> None:
        self._inbox.join(hub)

    def start(self, consumer: Any) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = consumer.timer.call_repeatedly(1.0, self._tick)

    def stop(self, consumer: Any) -> None:
        """Forget the held tasks: the connection is lost, or the worker stops."""
        self._lock.run(self._forget)

    def _forget(self) -> None:
        for held in self._all:
            held.over = True
            if held.cancel is not None:
                held.cancel()
                held.cancel = None
            undocumented.forget(held.request)
        for _, handle, _ in self._ready:
            self._give_back(handle)
        self._all, self._by_id = {}, {}
        self._lines.clear()
        self._ready.clear()
        self._busy.clear()
        self._further, self._static_prefetch = [], None

    def shutdown(self, consumer: Any) -> None:
        self.stop(consumer)
        self._tell()
        self._waiting.stop(_LEAVING)

    def info(self, consumer: Any) -> dict[str, Any]:
        return {"held_tasks": len(self._all)}

    # Take a task, and hold it

    def _take(self, request: Any) -> Any:
        """Hold a request if its task is limited. Send other requests to the pool."""
        task = request.task
        if task not in self._limited:
            self._limited[task] = semaphore_of(task)
        limited = self._limited[task]
        if limited is None or not request.id:
            return self._process(request)
        fields = request.request_dict
        job = job_of(
            task.name, request.id, fields.get("retries"), fields.get("replaced_task_nesting")
        )
        try:
            with undocumented.as_current_request(request):
                semaphore = limited(request.args, request.kwargs)
            semaphore._keys()  # raises an exception if a setting is wrong
        except Exception as error:
            self._warn_of(task.name, error)
            fields[HANDLE] = ""
            return self._process(request)
        undocumented.set_aside(request)
        self._lock.run(partial(self._hold, request, semaphore, job))

    def _warn_of(self, task: str, error: Exception) -> None:
        """Warn that this worker can't hold a task. Most probably, the task raises the same error.
        It does not if another decorator changes its arguments."""
        if task not in self._warned:
            self._warned.add(task)
            logger.warning(
                "can't hold the Celery task %s, so it waits for its permit in a process of the "
                "pool: its name can't be made from the arguments that were sent: %s: %s",
                *(task, type(error).__name__, error),
            )

    def _hold(self, request: Any, semaphore: Semaphore, job: Job) -> None:
        again = undocumented.may_be_a_copy(request)
        known = self._by_id.get(job.id)
        if again and known is not None:
            # The broker lost patience. The acknowledgement of the newer delivery counts.
            known.request, known.came = request, clock()
            return
        held = Held(request, semaphore, job, undocumented.since_of(request))
        if len(self._all) < MOST_HELD:
            self._raise_prefetch(held)
        self._all[held] = None
        self._by_id[job.id] = held
        self._lines.put(held)
        if again:
            alias, plan = noting(semaphore, "seen", job.id)
            self._waiting.carry_out(alias, plan, partial(self._seen, held))
        self._pump()

    def _seen(self, held: Held, word: str) -> None:
        if word in ("ended", "cleared"):
            self._inbox.put(partial(self._refused, held, word))

    def _raise_prefetch(self, held: Held) -> None:
        qos = self._consumer.qos
        before = qos.value
        held.raised = qos.increment_eventually() > before
        if self._static_prefetch is None:
            self._static_prefetch = undocumented.prefetches_per_consumer(self._consumer)
        if self._static_prefetch:
            self._consumer.timer.call_after(0, self._widen)

    def _widen(self) -> None:
        """Add further consumers, or cancel those that are no longer needed."""
        wanted = -(-len(self._all) // _WIDER)
        if len(self._further) < wanted:
            self._further.append(undocumented.further_consumer(self._consumer, _WIDER))
        while len(self._further) > wanted + 1:
            self._further.pop().cancel()

    def _leave(self, held: Held) -> None:
        """Take a task out of its line, and end its wait."""
        if held.cancel is not None:
            held.cancel()
            self._lines.asked(held)
        elif held.queued:
            self._lines.remove(held)

    def _remove(self, held: Held) -> None:
        """Stop holding a task."""
        self._leave(held)
        held.over = True
        del self._all[held]
        if self._by_id.get(held.job.id) is held:
            del self._by_id[held.job.id]
        if held.raised:
            self._consumer.qos.decrement_eventually()

    # Ask for permits

    def _room(self) -> int:
        """Return the number of processes without a limited task."""
        return int(self._consumer.pool.num_processes) - len(self._running)

    def _pump(self) -> None:
        """Let tasks ask for permits: those that get one at once find a free process, and a few of
        each line wait in Redis."""
        for request in [one for one in self._running if not undocumented.is_reserved(one)]:
            del self._running[request]
        room = self._room()
        while self._ready and room > 0:
            held, handle, _ = self._ready.popleft()
            if held.over:
                self._give_back(handle)
            else:
                self._send_to_pool(held, handle)
            room = self._room()
        while (asks := self._lines.next(room)) is not None:
            asks.cancel = self._waiting.ask(
                *(asks.semaphore, asks.job, asks.came),
                begins=partial(self._inbox.put, partial(self._begins, asks)),
                done=partial(self._answers, asks),
                again=undocumented.may_be_a_copy(asks.request),
            )

    def _answers(self, held: Held, result: Any) -> None:
        self._inbox.put(partial(self._answered, held, result))

    def _begins(self, held: Held) -> None:
        self._lines.waits(held)
        self._pump()

    def _answered(self, held: Held, result: Any) -> None:
        """Continue with a task that has a permit, or that must not run."""
        if held.cancel is None:  # the wait was cancelled, too late
            if isinstance(result, Handle):
                self._give_back(result)
            return
        self._lines.asked(held)
        if result in ("ended", "cleared"):
            self._refused(held, result)
        elif held.request.revoked():
            self._remove(held)
            if isinstance(result, Handle):
                self._give_back(result)
        elif not isinstance(result, Handle):  # the task meets the same error, and raises it
            self._send_to_pool(held, Handle())
        elif self._room() > 0:
            self._send_to_pool(held, result)
        else:
            self._ready.append((held, result, clock()))
        self._pump()

    def _refused(self, held: Held, why: str) -> None:
        """End a delivery that must not run."""
        if held.over:
            return
        self._remove(held)
        if why == "cleared":
            undocumented.revoke(held.request)
        else:
            logger.info("dropped a delivery of %s: it has ended", held.job.label)
            undocumented.drop(held.request)

    def _send_to_pool(self, held: Held, handle: Handle) -> None:
        self._remove(held)
        request = held.request
        undocumented.reserve(request, partial(self._ended, held), **{HANDLE: str(handle)})
        self._running[request] = None
        self._process(request)

    def _ended(self, held: Held, acknowledged: bool) -> None:
        """Continue after the pool has ended a task."""
        self._lock.run(partial(self._continue, held, acknowledged))

    def _continue(self, held: Held, acknowledged: bool) -> None:
        self._running.pop(held.request, None)
        if acknowledged:
            self._waiting.carry_out(*noting(held.semaphore, "ended", held.job.id))
        self._pump()

    def _give_back(self, handle: str) -> None:
        self._waiting.carry_out(*giving_back(handle))

    # Once a second

    def _tick(self) -> None:
        self._lock.run(self._look_after_all)

    def _look_after_all(self) -> None:
        self._end_revoked()
        now = clock()
        while self._ready and now - self._ready[0][2] > _READY:
            held, handle, _ = self._ready.popleft()
            self._give_back(handle)
            if not held.over:
                self._lines.put(held)
        self._pass_on(now)
        if self._further:
            self._widen()
        self._pump()
        self._tell()

    def _end_revoked(self) -> None:
        revoked = undocumented.any_revoked()
        for held in [h for h in self._all if revoked or h.request.expires]:
            if held.request.revoked():
                self._remove(held)

    def _pass_on(self, now: float) -> None:
        """Send tasks again: those that are held for too long, and some of the newest if this worker
        has no free process for them, for other workers."""
        processes = int(self._consumer.pool.num_processes)
        for key, line in self._lines.items():
            busy = self._room() <= 0 and len(line.queued) > processes
            if busy and key in self._busy:
                for held in line.queued[-min(len(line.queued) // 4, processes) :]:
                    self._send_again(held)
            (self._busy.add if busy else self._busy.discard)(key)
        options = self._consumer.app.conf.broker_transport_options
        patience = float(options.get("visibility_timeout", _VISIBILITY_TIMEOUT)) / VISIBILITY_PART
        for held in [h for h in self._all if now - h.came > min(LONGEST_HOLD, patience)]:
            if held.queued or held.cancel is not None:
                self._send_again(held)

    def _send_again(self, held: Held) -> None:
        self._leave(held)
        self._sender.put(
            partial(undocumented.send_again, held.request, held.since),
            partial(self._inbox.put, partial(self._sent, held)),
            partial(self._not_sent, held),
        )

    def _not_sent(self, held: Held, error: Exception) -> None:
        logger.warning("the broker did not accept %s: %r", held.job.label, error)
        self._inbox.put(partial(self._hold_on, held))

    def _sent(self, held: Held) -> None:
        """Acknowledge a task that was sent again. If the connection was lost meanwhile, the broker
        has the task twice, and both deliveries have the same id."""
        if not held.over:
            self._remove(held)
            undocumented.drop(held.request)

    def _hold_on(self, held: Held) -> None:
        """Hold a task that the broker did not accept."""
        if not held.over:
            self._lines.put(held)
            self._pump()

    def _tell(self) -> None:
        """Say in Redis how many tasks this worker holds that don't wait there."""
        named = dict(self._lines.counts().most_common(_TOLD))
        for _, line in self._lines.items():
            for held in line.queued[:1]:
                if held.semaphore.name in named:
                    self._told.setdefault(held.semaphore.name, held.semaphore)
        for name, semaphore in list(self._told.items()):
            worker, count = str(self._consumer.hostname), named.get(name, 0)
            self._waiting.carry_out(*noting(semaphore, "held", worker, count))
            if not count:
                del self._told[name]
