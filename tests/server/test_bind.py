"""Claiming an address."""

from __future__ import annotations

import socket

import pytest

from duologue.server.bind import AddressError, bind, page_url


def test_any_free_port() -> None:
    with bind("127.0.0.1", 0) as sock:
        port = sock.getsockname()[1]
        assert page_url(sock) == f"http://127.0.0.1:{port}/"


def test_a_port_in_use_is_named_with_the_remedy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            AddressError, match=f"port {port}: address already in use; pass another --host or --port"
        ):
            bind("127.0.0.1", port)


@pytest.mark.parametrize("host", ["no such host", "256.1.1.1", "a" * 300])
def test_a_host_that_does_not_exist(host: str) -> None:
    with pytest.raises(AddressError, match="cannot be resolved"):
        bind(host, 0)


def test_an_address_of_another_machine() -> None:
    with pytest.raises(AddressError, match=r"cannot listen on 192\.0\.2\.1 port 80"):
        bind("192.0.2.1", 80)


def test_the_page_of_a_server_on_all_addresses_is_on_localhost() -> None:
    with bind("0.0.0.0", 0) as sock:
        assert page_url(sock).startswith("http://localhost:")
