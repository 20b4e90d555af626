"""Redis Cluster: find the node of a name, and follow redirections.

All keys of a name are in one slot, so one node stores all of them. Each step is sent to that node,
in the same way as to a single server.
"""

from __future__ import annotations

import threading
from typing import Any

from redis.cluster import RedisCluster

from ..clients import ConnectionFactory
from .server import AsyncClusterServer, ClusterServer
from .topology import Address

__all__ = ["Address", "ClusterConnectionFactory", "ClusterServer"]


class ClusterConnectionFactory(ConnectionFactory):  # type: ignore[misc]
    """The value of OPTIONS["CONNECTION_FACTORY"] for a cache with Cluster nodes in LOCATION.

    For cache operations, there is one redis.cluster.RedisCluster client per URL and process. For
    locks and semaphores, django-redis makes a pool per node. So each key of OPTIONS means the same
    as for a single server. REDIS_SYNC["ASYNC_CLIENT"] is ignored.
    """

    _clusters: dict[str, RedisCluster] = {}
    _making = threading.Lock()

    def connect(self, url: str) -> Any:
        """Return the client for a URL. Raise redis-py's RedisClusterException if no node
        answers."""
        with self._making:
            if url not in self._clusters:
                given = {**self.make_connection_params(url), **self.pool_cls_kwargs}
                del given["parser_class"]
                self._clusters[url] = RedisCluster.from_url(**given, **self.redis_client_cls_kwargs)
            return self._clusters[url]

    def disconnect(self, connection: Any) -> None:
        connection.disconnect_connection_pools()

    def pool(self, url: str) -> Any:
        """Return the pool of the node at `url`."""
        return self.get_or_create_connection_pool(self.make_connection_params(url))

    #: What `server_of` and `async_server_of` make for an alias.
    sync_server, async_server = ClusterServer, AsyncClusterServer
