"""The arguments of `manage.py locks`, and the names that they refer to."""

from __future__ import annotations

import re
from argparse import SUPPRESS, ArgumentTypeError, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from functools import partial
from typing import Any

from django.core.management.base import CommandError, CommandParser, DjangoHelpFormatter
from django.utils.translation import gettext as _

from .. import values
from ..limits import identity
from ..operators.facts import Status
from ..operators.families import Pair, families, pair_of
from ..operators.formats import not_a_rate
from ..operators.history import Counters, histories
from ..operators.listing import FIGURES
from ..operators.names import Recent, is_known, is_listed, newest_keys, with_keys
from ..protocol.keys import MOST_BYTES, display, names_of
from .terminal import printable

EXIT_CODES = """\
exit codes:
  0  done; `status` and `doctor`: Redis answered, and doctor found no error
  1  Redis can't be reached, or nothing was done; doctor: an error was found
  2  wrong usage; doctor: Redis can't be reached
  3  the name is unknown, and nothing was done (`pause` and `resize`: see --create)
  `run`: the exit code of the command; 128 + n if signal n ended it; 69 Redis can't be reached;
  75 no permit was acquired; 76 the lease was lost and the command was ended; 126, 127 the command
  can't be run
"""
#: The exit code for an unknown name.
UNKNOWN = 3
#: The values of `status --sort`.
ORDERS = ("trouble", "name", "recent", *FIGURES)
#: The default of --top.
MAX_SHOWN = 50


def _limit(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise ArgumentTypeError(_("not a whole number of at least 1: %r") % text)
    return int(text)


def _rate(text: str) -> str:
    try:
        return values.rate("--rate", text)
    except ValueError:
        raise ArgumentTypeError(not_a_rate(text)) from None


def _time(text: str, least: float = 0.0) -> float:
    """Return the number of seconds that a text such as "0", "0.5", "90s", "10m", or "2d" means."""
    found = re.fullmatch(r"(\d*\.?\d+)([smhd]?)", text)
    value = float(found[1]) * values.UNITS[found[2] or "s"] if found else -1.0
    if not least <= value < 1e9:
        raise ArgumentTypeError(_("not a time such as 90s, 10m, 12h or 2d: %r") % text)
    return value


_span = partial(_time, least=1)
#: The functions that parse the options, by their names in Python.
_TYPES: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(("limit", "top"), _limit),
    **dict.fromkeys(("seconds", "since"), _span),
    **dict.fromkeys(("watch", "wait", "min_hold"), _time),
    "rate": _rate,
}


def parsed(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of the command, with texts such as "10m" parsed. `call_command()` passes
    keyword arguments on as they are. Raise CommandError for a text that can't be parsed."""
    found = dict(options)
    for option, value in options.items():
        if isinstance(value, str) and option in _TYPES:
            try:
                found[option] = _TYPES[option](value)
            except ArgumentTypeError as error:
                raise CommandError(f"{option}: {error}", returncode=2) from None
    return found


class Formatter(RawDescriptionHelpFormatter, DjangoHelpFormatter):
    """A help formatter that does not wrap the list of exit codes."""


def add_actions(parser: CommandParser) -> None:
    """Add a parser for each action."""
    using: dict[str, Any] = {
        "metavar": "ALIAS",
        "help": "a cache alias other than REDIS_SYNC['CACHE']",
    }
    parser.add_argument("--using", **using)
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    def add(action: str, text: str, name: str = "", **options: Any) -> CommandParser:
        """Add an action. `name`: the help of the argument NAME, if the name may not be omitted."""
        found: CommandParser = actions.add_parser(action, help=text, description=text, **options)
        found.add_argument("--using", default=SUPPRESS, **using)
        # Accept Django's own options after the action too.
        found.add_argument("-v", "--verbosity", type=int, default=SUPPRESS, help=SUPPRESS)
        for option in ("--settings", "--pythonpath"):
            found.add_argument(option, default=SUPPRESS, help=SUPPRESS)
        for option in ("--traceback", "--no-color", "--force-color"):
            found.add_argument(option, action="store_true", default=SUPPRESS, help=SUPPRESS)
        if name:
            found.add_argument("name", help=name)
        return found

    every = "a name, with all its keys"
    flag: dict[str, Any] = {"action": "store_true"}
    seconds: dict[str, Any] = {"type": _time, "metavar": "TIME"}
    span: dict[str, Any] = {"type": _span, "metavar": "TIME"}
    top: dict[str, Any] = {"type": _limit, "default": MAX_SHOWN, "metavar": "N"}

    status = add("status", "Show holders and waiters, and since when.")
    status.add_argument("name", nargs="?", help="one name; if omitted, a list of all names")
    text = "the order, with the largest numbers first; default: trouble first, as on the admin page"
    status.add_argument("--sort", choices=ORDERS, metavar="|".join(ORDERS), help=text)
    status.add_argument("--top", help=f"max number of names or keys to show ({MAX_SHOWN})", **top)
    text = "repeat after this time (1s), until Ctrl-C"
    status.add_argument("--watch", nargs="?", const=1.0, help=text, **seconds)

    text = "End the leases of the holders shown, but not those of later holders."
    clear = add("clear", text, every)
    clear.add_argument("--holder", metavar="ID", help="the id of a holder or waiter, from `status`")
    clear.add_argument("--pattern", help="the name is a glob: * ? [seq]", **flag)
    clear.add_argument("--dry-run", help="only show the holders", **flag)
    answer: dict[str, Any] = {"action": "store_false", "dest": "interactive"}
    clear.add_argument("--no-input", "--noinput", help="don't ask", **answer)

    pause = add("pause", "Grant no permits until resume, or for a time. Leases continue.", every)
    text = "end the pause after this time: 90s, 10m, 12h or 2d"
    pause.add_argument("--for", dest="seconds", help=text, **span)
    resume = add("resume", "Undo pause; waiters are admitted at once.", every)
    text = (
        "Replace the callers' limit or rate until --reset. Don't raise the limit of a lock. Each "
        "key of a policy has the limit and the rate for itself."
    )
    resize = add("resize", text, every)
    resize.add_argument("limit", nargs="?", type=_limit, metavar="LIMIT")
    text = "max permits granted in any period, such as 300/m, 10/30s or 1000/d"
    resize.add_argument("--rate", type=_rate, metavar="RATE", help=text)
    resize.add_argument("--reset", help="use the callers' limit and rate again", **flag)
    for each in (pause, resize):
        each.add_argument("--create", help="do it even if the name is unknown", **flag)

    text = "Show the events of a name, and whether its limit was too small."
    history = add("history", text, "a name; for a policy, all of its keys together")
    text = "show events of the last TIME, such as 90m, 12h or 1d (24h; at most STATS_HOURS)"
    history.add_argument("--since", default=86_400.0, help=text, **span)
    log = add("log", "Show the actions of operators, with their reasons.")
    log.add_argument("name", nargs="?", help="one name; if omitted, all names")
    log.add_argument("--top", help=f"the newest N ({MAX_SHOWN})", **top)

    add("doctor", "Check whether this Redis is fit for locks, and show remedies.")
    usage = "manage.py locks run NAME [--limit N] [--wait TIME] [--skip] [--min-hold TIME]"
    text = "Run a command while holding a permit, like flock(1) for several hosts."
    run = add("run", text, "the name of the lock or semaphore", usage=f"{usage} -- COMMAND ...")
    text = "number of permits of the name; default: the limit in SEMAPHORES, or 1"
    run.add_argument("--limit", type=_limit, metavar="N", help=text)
    text = (
        "max time to wait for a permit, such as 90s or 2m; 0: don't wait; default: no limit, or 0 "
        "with --skip"
    )
    run.add_argument("--wait", help=text, **seconds)
    text = "if no permit is available (at once, or after --wait), exit with 0 quietly"
    run.add_argument("--skip", help=text, **flag)
    text = (
        "keep the permit at least this long, such as 10m, so that the command runs once per period"
    )
    run.add_argument("--min-hold", help=text, **seconds)
    # The words of a command without `--`.
    run.add_argument("words", nargs="*", metavar="COMMAND", help=SUPPRESS)

    for each in (status, clear, pause, resume, resize, history, log):
        each.add_argument("--key", help="a key of the policy, such as a user's pk or an IP address")
    for each in (clear, pause, resume, resize):
        each.add_argument("--reason", default="", help="the reason, shown by `locks log`")
    for each in (status, history, log):
        each.add_argument("--format", choices=("table", "json"), default="table")


# Names


#: Max names that are compared with an unknown name, to suggest similar ones. They are the names
#: used last.
_MAX_COMPARED = 1000


def find(name: str, key: str | None, using: str | None, max_keys: int | None = None) -> list[Pair]:
    """Return the pairs (name, key) that an operator means by the arguments NAME and --key.

    If `key` is given, return only the pair with this key. If `name` has the form POLICY@KEY and is
    known only as a key of a policy, return only (POLICY, KEY). If `name` is a family, return its
    names. Otherwise, return (`name`, None) and a pair for each known key. If there are more than
    `max_keys` keys or names, return only those used last.
    """
    if key is not None:
        return [(name, _key(name, key, using))]
    policy, _at, child = name.partition("@")
    pairs = [(name, None), (policy, child)]
    if policy and child and is_listed(pairs, using=using) == [False, True]:
        return [(policy, child)]
    name = _name(name, using)
    if max_keys is None:
        return with_keys(name, using=using)
    is_family = name in families(using=using)
    keys = newest_keys({name: max_keys}, using=using)[name]
    own = [] if is_family and keys else [(name, None)]
    return [*own, *(pair_of(name, one, is_family) for one in keys)]


def _name(text: str, using: str | None) -> str:
    """Return the name that an operator means by `text`. A template of `synchronized` quotes and
    shortens values, so the name can differ from the text."""
    possible = names_of(text)
    if text in families(using=using):
        return text
    here = is_listed([(one, None) for one in possible], using=using)
    return [*(one for one, listed in zip(possible, here, strict=True) if listed), *possible][0]


def _key(name: str, key: str, using: str | None) -> str:
    """Return the key that an operator means by the text `key`. The text can differ from the key.
    For example, an operator gives an IP address, but the key is a digest of the address."""
    possible = [one for one in identity.possible_keys(key) if len(one.encode()) <= MOST_BYTES]
    here = is_listed([(name, one) for one in possible], using=using)
    known = [one for one, listed in zip(possible, here, strict=True) if listed]
    return [*known, *possible, key][0]


def unknown(found: Sequence[Status], using: str | None, remedy: str = "") -> str:
    """If the names of `found` are unknown, return an error message that also suggests similar
    names, or ends with `remedy` if there are none. Otherwise return "".

    A name is known if it is in the settings, has an override, was used within the last day, or has
    counters in Redis.
    """
    if any(one.used for one in found):
        return ""
    asked = [(one.name, one.key) for one in found]
    if is_known(*asked[0], using=using):
        return ""
    if any(one.ever != Counters() for one in histories(asked, minutes=1, using=using)):
        return ""
    text = _("Unknown name: %s. It is not configured and was not used within the last day.")
    shown = found[0].display
    alike = get_close_matches(shown, _others(shown, using))
    hint = _("Did you mean %s?") % printable(", ".join(alike)) if alike else remedy
    return f"{text % printable(shown)} {hint}".rstrip()


def _others(shown: str, using: str | None) -> list[str]:
    """Return the names that "Did you mean …?" may suggest for the unknown name `shown`. They are
    the names used last. If the name of a policy is similar to `shown`, its keys are included."""
    names = Recent(using=using)[:_MAX_COMPARED]
    policies = get_close_matches(shown.partition("@")[0], names)
    keys = newest_keys(dict.fromkeys(policies, _MAX_COMPARED), using=using)
    return [*names, *(display(name, key) for name in policies for key in keys[name])]
