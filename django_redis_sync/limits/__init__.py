"""Request limits: at most N requests of a view at the same time.

The steps of a request, with their modules:

1. The decorator and the mixin of `decorator` wrap a view, and `..middleware` serves the whole
   project. All three ask `policy` which limits apply. For each limit, `policy` combines the options
   from the decorator or mixin, ENDPOINTS, SEMAPHORES, and REQUESTS into a frozen `Policy`. The
   entry of ENDPOINTS is the one whose name or pattern matches the view.
2. `admission` acquires a permit of each policy, in a fixed order. If a policy has no free permit,
   `admission` releases the permits that it has acquired. `identity` finds the key and the share of
   the request, such as the user or the address. `engine.calls` runs both as plans, in sync
   and async code. `semaphore` sends the acquire requests to Redis, and bounds how many requests of
   a process wait.
3. `breaker` detects that Redis is down. Until Redis is back, the option `on_outage` decides: admit
   all requests, admit none, or let `local` limit the requests of this process.
4. For a rejected request, `rejection` makes the response: JSON, a page, or the error response of
   the view's framework, which comes from `frameworks`.
5. For an admitted request, `response` holds the permits in a `Hold` until the response has ended.
   If a transaction is open when the view returns, the middleware releases the Hold after it.
   `state` has what is known about a request until then.

`routes` finds the name, the class, and the limits of a view without calling it, and lists the views
of the URLconf.

To follow one request, read `decorator.respond`, `admission.admit`, and `response.Hold`.
"""
