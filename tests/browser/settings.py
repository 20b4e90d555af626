"""Settings of the site that the browser tests visit. Two environment variables change them.

SKIN: a theme of the admin (grappelli, unfold, or jazzmin), or `custom` for a custom AdminSite.
Without SKIN, responses have a strict Content-Security-Policy.

ADMIN_LANGUAGE: a language code, by default en. Tests use ar, which is written from right to left.
"""

import os
from collections.abc import Callable
from typing import Any

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS, MIDDLEWARE

SKIN = os.environ.get("SKIN", "")
LANGUAGE_CODE = os.environ.get("ADMIN_LANGUAGE", "en")
ROOT_URLCONF = "tests.browser.urls"
MIDDLEWARE = [*MIDDLEWARE, "tests.browser.settings.for_tests"]
if SKIN not in ("", "custom"):
    INSTALLED_APPS = [SKIN, *INSTALLED_APPS]
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'"
)


def for_tests(get_response: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Middleware that logs in the user named in the cookie `user`, and sets the
    Content-Security-Policy."""

    def middleware(request: Any) -> Any:
        from django.contrib.auth.models import User

        if name := request.COOKIES.get("user"):
            request.user = User.objects.get(username=name)
        response = get_response(request)
        if not SKIN:  # skins need scripts and styles that the policy forbids
            response["Content-Security-Policy"] = POLICY
        return response

    return middleware
