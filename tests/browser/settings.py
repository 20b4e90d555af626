"""Settings of the site: with a strict Content-Security-Policy, or with a skin of the admin.

DJANGO_REDIS_SYNC_SKIN: grappelli, unfold, jazzmin, or custom for a custom AdminSite.
DJANGO_REDIS_SYNC_LANGUAGE: a language, such as ar, which is written from right to left.
"""

import os

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS, MIDDLEWARE

SKIN = os.environ.get("DJANGO_REDIS_SYNC_SKIN", "")
LANGUAGE_CODE = os.environ.get("DJANGO_REDIS_SYNC_LANGUAGE", "en")
if not SKIN:
    # The policy would forbid the scripts and styles that skins add to each page.
    MIDDLEWARE = ["tests.browser.csp.strict", *MIDDLEWARE]
else:
    ROOT_URLCONF = "tests.browser.urls"
    if SKIN != "custom":
        INSTALLED_APPS = [SKIN, *INSTALLED_APPS]
