"""Defects of what requests meet."""

from __future__ import annotations

from .plant import Plant

CHECKS = "test_checks.py::"
BREAKER = "test_requests_breaker.py::"
ENFORCEMENT = "test_requests_enforcement.py::"
POLICY = "test_requests_policy.py::"
REFUSAL = "test_requests_refusal.py::"
SEATS = "test_requests_seats.py::"

PLANTS = [
    Plant(
        "marks of class handlers are not seen by checks",
        "limits/decorator.py",
        "    for one in known if method is None else {method.lower()}.intersection(known):",
        "    for one in () if method is None else {method.lower()}.intersection(known):",
        (CHECKS + "test_a_view_whose_limit_is_missing_or_impossible",),
    ),
    Plant(
        "a trial that was cancelled leaves the breaker without one",
        "limits/enforcement.py",
        "            redis.abandoned(era)\n            raise\n",
        "            raise\n",
        (ENFORCEMENT + "test_what_the_trial_comes_to_decides",),
    ),
    Plant(
        "a trial refused in this process leaves the breaker without one",
        "limits/enforcement.py",
        "            redis.abandoned(era)\n            return refusal\n",
        "            return refusal\n",
        (ENFORCEMENT + "test_those_let_in_during_an_outage_count_when_it_is_over",),
    ),
    Plant(
        "those let in during an outage don't count after it",
        "limits/enforcement.py",
        "alone = policy.enforce and not straight and mine.alone(place)",
        "alone = False",
        (ENFORCEMENT + "test_those_let_in_during_an_outage_count_when_it_is_over",),
    ),
    Plant(
        "shadow mode refuses in an outage",
        "limits/enforcement.py",
        'if policy.on_outage == "open" or not policy.enforce:',
        'if policy.on_outage == "open":',
        (ENFORCEMENT + "test_when_redis_fails_on_outage_rules_and_the_breaker_opens",),
    ),
    Plant(
        "a policy's max_hold does not reach its semaphore",
        "limits/enforcement.py",
        '{"key", "using"}',
        '{"key", "using", "max_hold"}',
        (ENFORCEMENT + "test_each_option_of_a_policy_reaches_its_semaphore",),
    ),
    Plant(
        "a policy's min_hold does not reach its semaphore",
        "limits/enforcement.py",
        '{"key", "using"}',
        '{"key", "using", "min_hold"}',
        (ENFORCEMENT + "test_each_option_of_a_policy_reaches_its_semaphore",),
    ),
    Plant(
        "a policy's fair does not reach its semaphore",
        "limits/enforcement.py",
        '{"key", "using"}',
        '{"key", "using", "fair"}',
        (ENFORCEMENT + "test_each_option_of_a_policy_reaches_its_semaphore",),
    ),
    Plant(
        "a policy's timeout does not reach its semaphore",
        "limits/enforcement.py",
        '{"key", "using"}',
        '{"key", "using", "timeout"}',
        (ENFORCEMENT + "test_each_option_of_a_policy_reaches_its_semaphore",),
    ),
    Plant(
        "a policy's max_waiters does not reach its semaphore",
        "limits/enforcement.py",
        "        self._max_waiters = policy.max_waiters\n",
        "",
        (ENFORCEMENT + "test_each_option_of_a_policy_reaches_its_semaphore",),
    ),
    Plant(
        "a permit's place stays noted",
        "limits/holding.py",
        "            self.note.discard(place)\n",
        "",
        (ENFORCEMENT + "test_a_response_that_is_still_to_be_rendered_keeps_its_permit",),
    ),
    Plant(
        "a template response gives back before it is rendered",
        "limits/holding.py",
        'if not self or not (streaming or not getattr(response, "is_rendered", True)):',
        "if not self or not streaming:",
        (ENFORCEMENT + "test_a_response_that_is_still_to_be_rendered_keeps_its_permit",),
    ),
    Plant(
        "IPv4 in IPv6 is a network",
        "limits/identity.py",
        "        if found.ipv4_mapped is not None:\n",
        "        if False:\n",
        (POLICY + "test_addresses_are_one_by_their_network_and_never_shown",),
    ),
    Plant(
        "True is a key",
        "limits/identity.py",
        "if isinstance(value, bool) or not isinstance(value, (str, int)):",
        "if not isinstance(value, (str, int)):",
        (POLICY + "test_what_a_callable_returns_is_digested_and_has_to_be_text",),
    ),
    Plant(
        "the mixin's initkwargs are lost",
        "limits/mixin.py",
        "return declared_by(self._view_class(**self._initkwargs))",
        "return declared_by(self._view_class())",
        (CHECKS + "test_a_view_whose_limit_is_given_somewhere",),
    ),
    Plant(
        "everyone tries when a probe was answered",
        "limits/outage.py",
        "trial, self._answered = self._answered, False",
        "trial = self._answered",
        (BREAKER + "test_after_an_answered_probe_a_single_request_tries",),
    ),
    Plant(
        "an abandoned trial is lost",
        "limits/outage.py",
        "self._answered = self._answered or era == self._era",
        "pass",
        (BREAKER + "test_after_a_try_that_was_cancelled_another_tries",),
    ),
    Plant(
        "SEMAPHORES come before ENDPOINTS",
        "limits/policy.py",
        "*(dict(layer) for layer in (*layers, config.named(name))), requests",
        "*(dict(layer) for layer in (config.named(name), *layers)), requests",
        (
            POLICY + "test_the_decorator_beats_the_endpoint_which_beats_the_semaphore_which_beats"
            "_requests",
        ),
    ),
    Plant(
        "an entry's options count for another name too",
        "limits/policy.py",
        "if entry is not None and entry.name == name else {}",
        "if entry is not None else {}",
        (POLICY + "test_an_endpoint_says_nothing_of_another_semaphore_on_its_view",),
    ),
    Plant(
        "Retry-After is rounded down",
        "limits/refusal.py",
        "return math.ceil(min(wait * random.uniform(1, 1 + JITTER), LATEST))",
        "return math.floor(min(wait * random.uniform(1, 1 + JITTER), LATEST))",
        (REFUSAL + "test_it_may_come_again_when_those_ahead_have_had_their_time",),
    ),
    Plant(
        "Retry-After is rounded to the nearest",
        "limits/refusal.py",
        "return math.ceil(min(",
        "return round(min(",
        (REFUSAL + "test_it_may_come_again_when_those_ahead_have_had_their_time",),
    ),
    Plant(
        "a fork inherits the seats of its parent",
        "limits/seats.py",
        "        if self._pid != os.getpid():  # the waiting threads are not in the fork\n"
        "            self._pid, self._taken = os.getpid(), weakref.WeakSet()\n",
        "",
        (SEATS + "test_those_who_wait_in_the_parent_take_no_seats_of_a_fork",),
    ),
    Plant(
        "a fork's first seat outlives nothing",
        "limits/seats.py",
        "while patient and (now := clock()) < end:",
        "while (now := clock()) < end:",
        (SEATS + "test_a_patient_request_gets_the_seat_of_another_that_did_not_have_to_wait",),
    ),
    Plant(
        "non_atomic_requests is not heeded",
        "middleware.py",
        'database["ATOMIC_REQUESTS"] and alias not in skipped',
        'database["ATOMIC_REQUESTS"]',
        (ENFORCEMENT + "test_a_view_is_atomic_where_django_wraps_it",),
    ),
    Plant(
        "the middleware keeps its permit when the view raises",
        "middleware.py",
        "        except BaseException:\n"
        "            if hold := _hold_of(request):\n"
        "                hold.release()\n"
        "            raise\n"
        "        if (hold := _hold_of(request)) and not hold.goes_with(response):\n"
        "            hold.release()",
        "        except BaseException:\n"
        "            raise\n"
        "        if (hold := _hold_of(request)) and not hold.goes_with(response):\n"
        "            hold.release()",
        (ENFORCEMENT + "test_the_middleware_keeps_nothing_when_what_is_inside_raises",),
    ),
    Plant(
        "the mixin's options are asked before the view is set up",
        "limits/mixin.py",
        "        view.setup(request, *args, **kwargs)\n",
        "",
        (
            "test_requests_views.py::test_a_mixins_options_know_the_views_request_where_the_middleware_asks_for_them",
        ),
    ),
    Plant(
        "a policy's only semaphore is looked up for each request",
        "limits/enforcement.py",
        "        _only[id(policy)] = conf.current(), *found\n",
        "        pass\n",
        (ENFORCEMENT + "test_a_policy_with_one_semaphore_looks_it_up_once",),
    ),
    Plant(
        "a stream that was read is cut off",
        "limits/holding.py",
        "            raise\n        finally:\n            self._hang_up = None\n",
        "            raise\n",
        (ENFORCEMENT + "test_what_would_cut_a_stream_off_is_let_go_of_with_its_last_part",),
    ),
    Plant(
        "those let in without Redis don't count on the straight way",
        "limits/enforcement.py",
        "if place in hold.note or rooms().has_room(place):",
        "if place in hold.note:",
        (ENFORCEMENT + "test_those_let_in_during_an_outage_count_on_the_straight_way_too",),
    ),
    Plant(
        "permits of several policies are taken as they are said",
        "limits/enforcement.py",
        "policies = sorted(policies, key=lambda policy: policy.name)",
        "policies = list(policies)",
        (ENFORCEMENT + "test_permits_of_several_policies_are_taken_by_name_whoever_says_them",),
    ),
    Plant(
        "a stream ends minutes before its lease",
        "limits/holding.py",
        "min(LEAD, PART * most)",
        "max(LEAD, PART * most)",
        (ENFORCEMENT + "test_a_stream_ends_a_moment_before_its_lease_does",),
    ),
    Plant(
        "a second refusal by Redis is told as an outage",
        "limits/outage.py",
        'self._era, self._answered, self._told = era + 1, False, ""',
        "self._era, self._answered = era + 1, False",
        (BREAKER + "test_each_outage_says_what_it_is",),
    ),
    Plant(
        "under ASGI a preflight takes a permit of the middleware",
        "middleware.py",
        "await aadmit(policies, request, preflight=is_preflight(request, view))",
        "await aadmit(policies, request)",
        ("test_requests_views.py::test_a_preflight_is_free_for_the_middleware_alone",),
    ),
    Plant(
        "the user of an async handler is Django's, whoever the framework found",
        "limits/steps.py",
        "if isinstance(self.request, HttpRequest) and hasattr",
        "if hasattr",
        ("test_requests_drf.py::test_an_async_handlers_user_is_the_one_that_the_framework_found",),
    ),
    Plant(
        "a permit lasts for as long as somebody keeps its view's error",
        "limits/decorator.py",
        "        response = await response\n    except BaseException:",
        "        response = await response\n    except Exception:",
        (ENFORCEMENT + "test_a_permit_is_given_back_though_somebody_keeps_the_error",),
    ),
    Plant(
        "a version of its own counts clients apart",
        "limits/identity.py",
        '_SALT = "django_redis_sync.limits.identity"',
        '_SALT = "django_redis_sync.identity"',
        (POLICY + "test_a_digest_is_that_of_every_version",),
    ),
]
