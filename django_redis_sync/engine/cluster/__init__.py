"""Redis Cluster: which node has a name, and the reaction when that changes.

Every key of a name lies in one slot, so a step goes to one node, and each node is served as a
single server is. These modules only pick the node, and follow where the cluster points.
"""

from .factory import ClusterConnectionFactory
from .server import ClusterServer
from .topology import Address

__all__ = ["Address", "ClusterConnectionFactory", "ClusterServer"]
