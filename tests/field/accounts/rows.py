"""Rows of users: who a request is, and who counts it."""

from tests.field.row import Row

TITLE = "Users"
PACKAGES = ["django-impersonate", "django-ninja", "django-oauth-toolkit", "djangorestframework"]
BACKENDS = ["django.contrib.auth.backends.ModelBackend", "oauth2_provider.backends.OAuth2Backend"]
SETTINGS = {
    "INSTALLED_APPS": ["impersonate", "oauth2_provider", "rest_framework"],
    "AUTHENTICATION_BACKENDS": BACKENDS,
    "ATOMIC_REQUESTS": False,  # Django doesn't allow it for async views
    "MIDDLEWARE": [
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "oauth2_provider.middleware.OAuth2TokenMiddleware",
        "impersonate.middleware.ImpersonateMiddleware",
        "tests.field.users.by_token",
        "django_redis_sync.middleware.ConcurrencyLimitMiddleware",
    ],
    "REDIS_SYNC": {"ENDPOINTS": {"*endpoint": {"name": "mine", "limit": 1, "key": "user"}}},
    "REST_FRAMEWORK": {"UNAUTHENTICATED_USER": None},
}

_VIEWS = {
    "function": "sync/",
    "async function": "async/",
    "function in `ENDPOINTS`": "endpoint/",
    "async function in `ENDPOINTS`": "aendpoint/",
}
_USERS = {
    "session": "session",
    "set by a middleware": "token",
    "`django-impersonate`": "impersonated",
    "`OAuth2TokenMiddleware`": "oauth",
}
_INSIDE = {
    "`get` of an `APIView`": ("handler/", "`BasicAuthentication`", "basic"),
    "function below `@api_view`": ("function/", "`OAuth2Authentication`", "oauth"),
    "throttle of an `APIView`": ("throttle/", "`BasicAuthentication`", "basic"),
    "operation of django-ninja": ("ninja/one", "`HttpBearer` that sets `request.user`", "bearer"),
    "throttle of django-ninja": ("ninja/two", "`HttpBearer` that sets `request.user`", "bearer"),
}

ROWS = [
    *(
        Row(view, "counts_each_user", path, user, server=server, arguments={"as": kind})
        for view, path in _VIEWS.items()
        for user, kind in _USERS.items()
        for server in ("WSGI", "ASGI")
    ),
    *(
        Row(view, "counts_each_user", path, user, server=server, arguments={"as": kind})
        for view, (path, user, kind) in _INSIDE.items()
        for server in ("WSGI", "ASGI")
    ),
    *(
        Row(
            view,
            "counts_each_user",
            path,
            "session, backend with only `authenticate` and `get_user`",
            server="ASGI",
            settings={"AUTHENTICATION_BACKENDS": ["tests.field.accounts.urls.Backend"]},
            arguments={"as": "session"},
        )
        for view, path in _VIEWS.items()
    ),
    Row("`get` of an `APIView`", "counts_by_address", "handler/", "`UNAUTHENTICATED_USER = None`"),
]
