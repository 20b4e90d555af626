"""Request limits: at most N requests of a view at the same time.

The way of a request, and the module of each step:

1. The decorator and the mixin of `decorator` wrap a view, and `..middleware` serves the whole
   project. All three ask `policy` which limits apply: options from the decorator or mixin,
   ENDPOINTS, SEMAPHORES, and REQUESTS become one frozen `Policy`.
2. `admission` takes a permit of each policy, all in one order, or none.
   `identity` makes the key and the share, from the user, the address, or a project's callable.
   `semaphore` asks Redis, and lets only some of a process's requests wait.
3. `breaker` knows whether Redis is down. Then `local` decides, a limiter in this process.
4. A request that gets no permit: `rejection` makes the response, as JSON, a page, or in the form of
   the view's framework.
5. A request that gets permits: `response` holds them in a `Hold`, until the response has ended.

`routes` says what is known of a view without calling it, and which views the URLconf reaches.

To follow one request, read `decorator.respond`, `admission.admit`, and `response.Hold`.
"""
