"""How a server is reached: its address and key, requests, web sockets. What is said there is other rooms' matter."""

from forkyard.wire.place import KEY_VARIABLES, URL_VARIABLES, Place, place_of
from forkyard.wire.transport import ClosedError, RefusedError, Reply, Socket, Transport, data_of
from forkyard.wire.url import UrlTransport

__all__ = [
    "KEY_VARIABLES",
    "URL_VARIABLES",
    "ClosedError",
    "Place",
    "RefusedError",
    "Reply",
    "Socket",
    "Transport",
    "UrlTransport",
    "data_of",
    "place_of",
]
