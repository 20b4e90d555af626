"""`python -m example_project.demo`: start Redis and the site, send traffic, print the table."""

import argparse
import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType

from devtools.servers import NoServer, shared_server

PASSED, BROKEN, NOT_RUN = 0, 1, 2


class CannotRun(Exception):
    """The demo can't run. The message says what to do."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo. Return 0 if all checks pass, 1 if a check fails, 2 if the demo can't run."""
    options = parse(arguments)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # keep SIGHUP ignored under nohup
            signal.signal(number, _leave)
    try:
        with shared_server() as url:
            started = None if os.environ.get("REDIS_URL") else url
            os.environ["REDIS_URL"] = url
            return run(options, started)
    except (CannotRun, NoServer) as error:
        print(f"The demo could not run: {error}", file=sys.stderr)
        return NOT_RUN
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)
        return 128 + signal.SIGINT


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the parsed arguments of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m example_project.demo",
        description="Send real HTTP requests to the example site, and show that its limits hold.",
    )
    parser.add_argument("--exit", action="store_true", help="end after the table")
    parser.add_argument(
        "--workers", type=_several, help="workers per server (default: gunicorn 3, uvicorn 2)"
    )
    parser.add_argument(
        "--port", type=_port, help="port of gunicorn; uvicorn gets the next (default: free ports)"
    )
    parser.add_argument(
        "--without-locks",
        action="store_true",
        help="disable all locks and limits, to show that the checks fail without them",
    )
    return parser.parse_args(arguments)


def run(options: argparse.Namespace, started: str | None) -> int:
    """Set up Django and run all scenarios. `started`: URL of the Redis that the demo started."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "example_project.settings"
    os.environ["DEMO_WITHOUT_LOCKS"] = "1" if options.without_locks else "0"
    try:
        import django

        django.setup()
        # Not at the top: these modules need the settings and the packages of the `demo` extra.
        from example_project.demo import report, scenarios, site
    except ModuleNotFoundError as error:
        hint = "install what the demo needs with: pip install -e '.[demo]'"
        raise CannotRun(f"{error}; {hint}") from error

    show = report.Show()
    try:
        with site.folder():
            password = site.make_database()
            show.begin(options.without_locks)
            with site.serve(options.workers, options.port) as servers:
                show.servers(servers)
                verdicts = scenarios.play_all(servers, show)
                passed = show.table(verdicts, servers)
                if not options.exit:
                    show.links(servers, password, started)
                    with contextlib.suppress(KeyboardInterrupt):
                        site.stay_up(servers)
                show.ending()
    except site.SiteError as error:
        raise CannotRun(str(error)) from error
    return PASSED if passed else BROKEN


def _several(text: str) -> int:
    number = int(text)
    if not 2 <= number <= 16:
        raise argparse.ArgumentTypeError("there must be 2 to 16 workers: the demo kills one")
    return number


def _port(text: str) -> int:
    number = int(text)
    if not 1024 <= number <= 65534:
        raise argparse.ArgumentTypeError("the port must be from 1024 to 65534")
    return number


def _leave(number: int, frame: FrameType | None) -> None:
    """Turn a signal into an exception, so that the demo stops all processes that it started."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
