"""`synchronized(..., on_full="hold")`: limited Celery tasks that wait in the worker's main process.

The worker holds a task until it has a permit, as Celery holds a task with a countdown. So no
process of its pool waits, and the broker keeps the task until it has run.

- `tasks`: what a limited task does in a process of the pool.
- `consumer`: the step of Celery's consumer that holds the tasks.
- `lines`: the tasks that a worker holds, and which of them ask for a permit next.
- `waiting`: one thread in which an event loop waits for all permits; with gevent, greenlets.
- `threads`: how threads talk to that of the consumer, and a thread that sends tasks again.
- `undocumented`: everything of Celery that its documentation doesn't mention.

These modules are imported only if `on_full="hold"` is used.
"""
