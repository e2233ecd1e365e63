"""The server's overhead is told apart from the model's work."""

from __future__ import annotations

import socket
import subprocess
import threading

import pytest

from duologue.bench.server_overhead import _read, bench_server


def test_overhead_is_what_is_left_beside_the_forward_step() -> None:
    found = bench_server(streams=2, tokens=30, repetitions=1)
    assert found.engine_us > 0
    assert found.http_us > 0
    assert found.as_dict()["total_us"] == round(found.total_us, 1)


def test_a_refused_stream_is_no_reading() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def refuse() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 403 Forbidden\r\n\r\n")

        thread = threading.Thread(target=refuse)
        thread.start()
        with pytest.raises(subprocess.CalledProcessError):
            _read(listener.getsockname()[1], 1, 5)
        thread.join()
