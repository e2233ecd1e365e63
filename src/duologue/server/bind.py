"""The listening socket, apart from the web stack so that it costs no import to claim a port."""

from __future__ import annotations

import ipaddress
import os
import socket

from duologue.errors import DuologueError


class AddressError(DuologueError):
    """The server cannot listen where it was asked to."""


def bind(host: str, port: int) -> socket.socket:
    """A bound, not yet listening TCP socket (port 0: any free one). Raises `AddressError`.

    Binding comes before the model is loaded: a port in use should cost no one a wait.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        raise AddressError(f"the host '{host}' cannot be resolved ({error}); pass another --host") from None
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except (OSError, OverflowError) as error:
        sock.close()
        reason = (
            os.strerror(error.errno).lower() if isinstance(error, OSError) and error.errno else str(error)
        )
        raise AddressError(
            f"cannot listen on {host} port {port}: {reason}; pass another --host or --port"
        ) from None
    sock.setblocking(False)
    return sock


def is_loopback(sock: socket.socket) -> bool:
    """Whether only this machine reaches it."""
    return ipaddress.ip_address(sock.getsockname()[0].partition("%")[0]).is_loopback


def page_url(sock: socket.socket) -> str:
    """Where a browser on this machine finds the page."""
    host, port = sock.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "localhost"
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"
