"""Defects that are planted into the command and the admin pages, to see that tests find them."""

from __future__ import annotations

from .mutant import Mutant

MUTANTS = [
    Mutant(
        "a GET request to a confirmation page acts",
        'sent = request.POST if request.method == "POST" else None',
        "sent = request.POST or {**request.GET.dict()}",
        "test_admin_actions.py",
    ),
    Mutant(
        "a login after an ended session loses the form data",
        'return f"{request.path}?{fields.urlencode()}"',
        "return request.path",
        "test_admin_actions.py",
    ),
    Mutant(
        "the CSRF middleware answers a request of an ended session",
        "        @csrf_exempt\n",
        "",
        "test_admin_actions.py",
    ),
    Mutant(
        "release all also clears later holders",
        "evicts = staticmethod(operator.le)",
        "evicts = staticmethod(lambda fence, given: True)",
        "test_admin_actions.py",
    ),
    Mutant(
        "a pause for ten minutes has no end",
        '("600", gettext_lazy("10 minutes"))',
        '("", gettext_lazy("10 minutes"))',
        "test_admin_actions.py",
    ),
    Mutant(
        "viewers may act",
        "    if not own.may_manage(request):\n        raise PermissionDenied\n    if verb",
        "    if verb",
        "test_admin_actions.py",
    ),
    Mutant(
        "broken pages show passwords",
        "without_secrets(message), remedy",
        "message, remedy",
        "test_admin_actions.py",
    ),
    Mutant(
        "the doctor examines at each load",
        "if place not in _examined or now - _examined[place][0] > HEALTH_LIFETIME:",
        "if True:",
        "test_admin_pages.py",
    ),
    Mutant(
        "a live page doesn't use cached data",
        """    with remembered(live=live):
        context = {"listing": pages.listing(_wanted(request))}""",
        """    context = {"listing": pages.listing(_wanted(request))}""",
        "test_admin_scale.py",
    ),
    Mutant(
        "problems are sorted by name",
        'order, field = "trouble", "name" if',
        'order, field = "name", "name" if',
        "test_admin_scale.py",
    ),
    Mutant(
        "a bar counts as busy at 50 %",
        "share >= 0.75",
        "share >= 0.5",
        "test_admin_pages.py",
    ),
    Mutant(
        "HTML in a label is not escaped",
        "<bdi>{{ label.label }}</bdi>",
        "<bdi>{{ label.label|safe }}</bdi>",
        "test_admin_pages.py",
    ),
    Mutant(
        "sorting twice doesn't reverse the order",
        'link(o=f"-{field}" if order == field else field)',
        "link(o=field)",
        "test_admin_pages.py",
    ),
    Mutant(
        "members of a quorum are not shown",
        "{% for member in status.members %}",
        "{% for member in status.nothing %}",
        "test_admin_pages.py",
    ),
    Mutant(
        "a doctor's warning is an error",
        'if any(finding.level == "error" for finding in findings):',
        'if any(finding.level != "ok" for finding in findings):',
        "test_operators_doctor.py",
    ),
    Mutant(
        "actions of the command lose their reason",
        "change = actions.Change(name, key, using, reason=given.reason)",
        "change = actions.Change(name, key, using, reason='')",
        "test_operators_using.py",
    ),
    Mutant(
        "conflicting limits are not shown",
        "if one.conflicting_limit is not None and one.callers_limit is not None:",
        "if False:",
        "test_command_status.py",
    ),
    Mutant(
        "a full name is not marked",
        "trouble=in_use >= limit",
        "trouble=in_use > limit",
        "test_command_status.py",
    ),
    Mutant(
        "Ctrl-Z suspends run",
        "        before[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, lambda *_: None)\n",
        "",
        "test_command_run.py",
    ),
    Mutant(
        "clear handles only some of very many holders",
        "statuses(names, using=using, rows=MAX_CLEARED)",
        "statuses(names, using=using)",
        "test_command_act.py",
    ),
    Mutant(
        "a screen has one line too many",
        "lines[: height - 1], text",
        "lines[:height], text",
        "test_command_status.py",
    ),
]
