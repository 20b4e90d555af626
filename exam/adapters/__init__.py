"""The adapters of the exam, by the part of the table that shows them."""

GROUPS = {
    "This project": {
        "lock": "exam.adapters.ours:OurLock",
        "semaphore": "exam.adapters.ours:OurSemaphore",
        "async": "exam.adapters.ours:OurAsyncSemaphore",
        "quorum": "exam.adapters.ours:OurQuorum",
        "requests": "exam.adapters.ours:OurRequests",
    },
    "Libraries": {
        "redis-py": "exam.adapters.peers:RedisPy",
        "python-redis-lock": "exam.adapters.peers:PythonRedisLock",
        "pottery": "exam.adapters.peers:Pottery",
        "redis-semaphore": "exam.adapters.peers:RedisSemaphore",
        "steindamm": "exam.adapters.peers:Steindamm",
        "async-redis-rate-limiters": "exam.adapters.peers:AsyncRedisRateLimiters",
        "django-smart-ratelimit": "exam.adapters.ours:DjangoSmartRatelimit",
        "cache-add": "exam.adapters.ours:CacheAdd",
        "postgres": "exam.adapters.ours:PostgresAdvisory",
    },
    "The articles' code": {
        "setnx": "exam.adapters.articles:SetnxExpire",
        "set-nx-ex": "exam.adapters.articles:SetNxEx",
        "zset": "exam.adapters.articles:UnfairSortedSet",
        "zset-fair": "exam.adapters.articles:FairSortedSet",
        "incr": "exam.adapters.articles:IncrLock",
    },
}
ADAPTERS = {key: where for part in GROUPS.values() for key, where in part.items()}
