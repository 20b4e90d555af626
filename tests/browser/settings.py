"""The test site with a strict Content-Security-Policy on every page."""

from tests.settings import *  # noqa: F403
from tests.settings import MIDDLEWARE

MIDDLEWARE = ["tests.browser.csp.strict", *MIDDLEWARE]
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
