"""Redis Cluster: find the node of a name, and follow redirections.

All keys of a name are in one slot, so one node stores all of them. Each step is sent to that node,
in the same way as to a single server.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from redis.cluster import RedisCluster

from ..backends import ConnectionFactory
from ..mutex import Mutex
from .server import AsyncClusterServer, ClusterServer
from .topology import Address

__all__ = ["Address", "ClusterConnectionFactory", "ClusterServer"]


class ClusterConnectionFactory(ConnectionFactory):  # type: ignore[misc]
    """The value of OPTIONS["CONNECTION_FACTORY"] for a cache with Cluster nodes in LOCATION.

    Cache operations use one redis.cluster.RedisCluster client per URL and process. Locks and
    semaphores use one connection pool per node. django-redis makes these pools, so each key of
    OPTIONS has the same meaning as for a single server. REDIS_SYNC["ASYNC_CLIENT"] is ignored.
    """

    _clusters: dict[str, RedisCluster] = {}
    _making = Mutex()

    def connect(self, url: str) -> Any:
        """Return the RedisCluster client for a URL. Raise redis-py's RedisClusterException if no
        node answers."""
        if url not in self._clusters:
            self._making.run(partial(self._make, url))
        return self._clusters[url]

    def _make(self, url: str) -> None:
        if url not in self._clusters:
            given = {**self.make_connection_params(url), **self.pool_cls_kwargs}
            del given["parser_class"]
            self._clusters[url] = RedisCluster.from_url(**given, **self.redis_client_cls_kwargs)

    def disconnect(self, connection: Any) -> None:
        connection.disconnect_connection_pools()

    def pool(self, url: str) -> Any:
        """Return the connection pool of the node at `url`."""
        return self.get_or_create_connection_pool(self.make_connection_params(url))

    #: The classes of the objects that `server_of` and `async_server_of` return for an alias.
    sync_server, async_server = ClusterServer, AsyncClusterServer
