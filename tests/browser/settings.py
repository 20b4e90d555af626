"""The test site with a strict Content-Security-Policy on every page, or in a skin that people run.

DJANGO_REDIS_SYNC_SKIN: grappelli, unfold, jazzmin, or custom for an AdminSite of one's own.
DJANGO_REDIS_SYNC_LANGUAGE: another language, such as ar, which is written from right to left.
"""

import os

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS, MIDDLEWARE

SKIN = os.environ.get("DJANGO_REDIS_SYNC_SKIN", "")
LANGUAGE_CODE = os.environ.get("DJANGO_REDIS_SYNC_LANGUAGE", "en")
if not SKIN:
    # The skins bring scripts and styles of their own into every page, which it would forbid.
    MIDDLEWARE = ["tests.browser.csp.strict", *MIDDLEWARE]
else:
    ROOT_URLCONF = "tests.browser.urls"
    if SKIN != "custom":
        INSTALLED_APPS = [SKIN, *INSTALLED_APPS]
