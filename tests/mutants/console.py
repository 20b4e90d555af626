"""Defects of what operators see: the command and the pages."""

from __future__ import annotations

from .plant import Plant

PLANTS = [
    Plant(
        "a confirm page by GET acts",
        'sent = request.POST if request.method == "POST" else None',
        "sent = request.POST or {**request.GET.dict()}",
        "test_admin_actions.py",
    ),
    Plant(
        "an ended session loses what was typed",
        'return f"{request.path}?{fields.urlencode()}"',
        "return request.path",
        "test_admin_actions.py",
    ),
    Plant(
        "an ended session is answered by the middleware",
        "        @csrf_exempt\n",
        "",
        "test_admin_actions.py",
    ),
    Plant(
        "release all takes later holders too",
        "return fence <= given",
        "return True",
        "test_admin_actions.py",
    ),
    Plant(
        "a pause for ten minutes has no end",
        'return {"seconds": minutes and minutes * 60}',
        'return {"seconds": None}',
        "test_admin_actions.py",
    ),
    Plant(
        "viewers may act",
        "    if not own.may_manage(request):\n        raise PermissionDenied\n    if verb",
        "    if verb",
        "test_admin_actions.py",
    ),
    Plant(
        "broken pages show passwords",
        "without_secrets(message), remedy",
        "message, remedy",
        "test_admin_pages.py",
    ),
    Plant(
        "the doctor examines at each load",
        "if found is None or time.monotonic() - found.at > HEALTH_LIFETIME:",
        "if True:",
        "test_admin_pages.py",
    ),
    Plant(
        "a live page remembers nothing",
        """    with remembered(live=True):
        return _render(own, request, "_list", _list_context(own, request))""",
        """    return _render(own, request, "_list", _list_context(own, request))""",
        "test_admin_scale.py",
    ),
    Plant(
        "problems come by name",
        'order, field = "trouble", "name" if',
        'order, field = "name", "name" if',
        "test_admin_scale.py",
    ),
    Plant(
        "a bar is busy at half",
        "share >= 0.75",
        "share >= 0.5",
        "test_console_charts.py",
    ),
    Plant(
        "HTML in a label is markup",
        "<bdi>{{ label.label }}</bdi>",
        "<bdi>{{ label.label|safe }}</bdi>",
        "test_admin_pages.py",
    ),
    Plant(
        "sorting twice sorts alike",
        'link(o=f"-{field}" if wanted.order == field else field)',
        "link(o=field)",
        "test_admin_pages.py",
    ),
    Plant(
        "members of a quorum are not shown",
        "{% for member in status.members %}",
        "{% for member in status.nothing %}",
        "test_admin_pages.py",
    ),
    Plant(
        "a doctor's warning is an error",
        'if any(finding.level == "error" for finding in findings):',
        'if any(finding.level != "ok" for finding in findings):',
        "test_operators_truth.py",
    ),
    Plant(
        "acts from the command forget the reason",
        "names = act(plain, child, using=using, reason=reason)",
        "names = act(plain, child, using=using, reason='')",
        "test_operators_using.py",
    ),
    Plant(
        "a clash is not said",
        "if one.conflicting_limit is not None and one is not told:",
        "if False:",
        "test_command_status.py",
    ),
    Plant(
        "a full name is not marked",
        "full = one.in_use >= one.limit",
        "full = one.in_use > one.limit",
        "test_command_status.py",
    ),
    Plant(
        "Ctrl-Z suspends run",
        "        before[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, lambda *_: None)\n",
        "",
        "test_command_run.py",
    ),
    Plant(
        "of very many holders some are cleared",
        "statuses(names, using=using, rows=MAX_CLEARED)",
        "statuses(names, using=using)",
        "test_command_act.py",
    ),
    Plant(
        "a screen has a line too many",
        "lines[: height - 1], text",
        "lines[:height], text",
        "test_command_status.py",
    ),
]
