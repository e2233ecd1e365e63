"""Requests to an OpenAI-compatible server and the time of every piece of their answers.

The benchmark shares its processor with the server that it measures, so pieces of a stream are only kept with the time of their
arrival; what they say is read after the stream has ended. The parser is httptools' (C), which the server uses too.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import urlsplit

import httptools

from duologue.errors import DuologueError

_ERROR_CHARS = 300


class BenchError(DuologueError):
    """The server cannot be reached, refuses, or answers in a form that the benchmark does not know."""


@dataclass
class Answer:
    """One response. `started_s`, `pieces[i][0]` and `ended_s` are `time.perf_counter()`."""

    started_s: float
    status: int = 0
    ended_s: float = 0.0
    pieces: list[tuple[float, bytes]] = field(default_factory=list)

    def body(self) -> bytes:
        """All of it."""
        return b"".join(data for _, data in self.pieces)


class Client:
    """Keeps idle connections for reuse. Used on one event loop; close it there.

    `url` is the server's base, with or without `/v1`. Raises BenchError for anything but http and https.
    """

    def __init__(self, url: str, *, api_key: str | None = None, timeout_s: float = 600.0) -> None:
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            host, port = parts.hostname, parts.port
        except ValueError:
            host = None
        if not host or parts.scheme not in ("http", "https"):
            raise BenchError(f"'{url}' is not a server's address; write for example http://127.0.0.1:8000")
        self._host = host
        self._port = port or (443 if parts.scheme == "https" else 80)
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._base = parts.path.rstrip("/").removesuffix("/v1")
        place = parts.netloc.rpartition("@")[2]  # without a password
        self._address = f"{parts.scheme}://{place}{self._base}"
        self._timeout_s = timeout_s
        self._idle: deque[_Connection] = deque()
        if api_key and not (api_key.isascii() and api_key.isprintable()):
            raise BenchError("the API key has characters that no HTTP header can hold; use another")
        authorization = f"authorization: Bearer {api_key}\r\n" if api_key else ""
        self._headers = f"host: {place}\r\naccept: */*\r\n{authorization}"

    async def close(self) -> None:
        """Closes the idle connections."""
        while self._idle:
            self._idle.pop().transport.close()
        await asyncio.sleep(0)  # transports close in the loop's next round

    async def get(self, path: str) -> Answer:
        """`path` begins with a slash. Raises BenchError when there is no answer at all."""
        return await self._ask(f"GET {self._base}{path} HTTP/1.1\r\n{self._headers}\r\n".encode())

    async def post(self, path: str, fields: dict[str, Any]) -> Answer:
        """Sends JSON. The clock starts when the encoded request is handed to the socket. Raises as `get`."""
        body = json.dumps(fields).encode()
        head = (
            f"POST {self._base}{path} HTTP/1.1\r\n{self._headers}"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        return await self._ask(head.encode() + body)

    async def _ask(self, request: bytes) -> Answer:
        # A connection that was idle may have been closed by the server in that very moment; a new one is another matter.
        while self._idle:
            connection = self._idle.pop()
            if connection.transport.is_closing():
                continue
            try:
                return await self._exchange(connection, request)
            except _ClosedUnansweredError:
                continue
        try:
            loop = asyncio.get_running_loop()
            opening = loop.create_connection(_Connection, self._host, self._port, ssl=self._tls)
            _, connection = await asyncio.wait_for(opening, 30)
            return await self._exchange(connection, request)
        except _ClosedUnansweredError:
            raise BenchError(
                f"{self._address} closed the connection without an answer; see its log"
            ) from None
        except (OSError, asyncio.TimeoutError) as error:
            reason = str(error) or "it does not answer"
            raise BenchError(
                f"{self._address} cannot be reached ({reason}); is the server running?"
            ) from None

    async def _exchange(self, connection: _Connection, request: bytes) -> Answer:
        try:
            answer = await asyncio.wait_for(connection.exchange(request), self._timeout_s)
        except asyncio.TimeoutError:
            connection.transport.close()
            raise BenchError(
                f"{self._address} took longer than {self._timeout_s:g} s for one request"
            ) from None
        except BaseException:
            connection.transport.close()
            raise
        if connection.reusable and not connection.transport.is_closing():
            self._idle.append(connection)
        else:
            connection.transport.close()
        return answer


class _ClosedUnansweredError(Exception):
    """The server closed the connection before the first byte of an answer."""


class _Connection(asyncio.Protocol):
    """One request at a time."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.reusable = False
        self._answer = Answer(0.0)
        self._done: asyncio.Future[None] | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._now_s = 0.0
        # Whether the headers tell where the answer ends; otherwise that is where the connection does.
        self._has_end = False

    async def exchange(self, request: bytes) -> Answer:
        self._parser = httptools.HttpResponseParser(self)
        self._done = asyncio.get_running_loop().create_future()
        self.reusable = self._has_end = False
        answer = self._answer = Answer(time.perf_counter())
        self.transport.write(request)
        await self._done
        return answer

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._now_s = time.perf_counter()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._end(BenchError(f"the server does not answer in HTTP ({error}); check the address"))
            self.transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        if self._answer.status == 0:
            self._end(_ClosedUnansweredError())
        elif error is None and not self._has_end:
            self._answer.ended_s = time.perf_counter()
            self._end(None)
        else:
            self._end(BenchError("the server closed the connection in the middle of an answer; see its log"))

    # the parser's side

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._has_end = True

    def on_headers_complete(self) -> None:
        self._answer.status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        self._answer.pieces.append((self._now_s, data))

    def on_message_complete(self) -> None:
        self.reusable = self._parser.should_keep_alive()
        self._answer.ended_s = self._now_s
        self._end(None)

    def _end(self, error: Exception | None) -> None:
        if self._done is not None and not self._done.done():
            if error is None:
                self._done.set_result(None)
            else:
                self._done.set_exception(error)


@dataclass(frozen=True)
class ChatReading:
    """One streamed reply: its text, counts and times. `first_s` and `last_s` are from the request's start to the first and the last
    token's arrival; `cached_tokens` is None where the server does not say."""

    text: str
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None
    first_s: float
    last_s: float

    @property
    def per_token_s(self) -> float | None:
        """Mean time of a token after the first; None for replies of one token."""
        if self.completion_tokens < 2:
            return None
        return (self.last_s - self.first_s) / (self.completion_tokens - 1)


def read_chat_stream(answer: Answer) -> ChatReading:
    """Reads the events of a streamed chat completion with `include_usage`.

    Raises BenchError with the server's message if it refused or failed, and when the usage is missing.
    """
    if answer.status != 200:
        raise BenchError(f"the server answered {answer.status}: {_error_message(answer.body())}")
    text: list[str] = []
    first_s = last_s = None
    usage: dict[str, Any] | None = None
    cached: int | None = None
    for at_s, event in _events(answer):
        if "error" in event:
            raise BenchError(f"the server failed in the middle of a reply: {event['error']}")
        for choice in event.get("choices") or ():
            delta = choice.get("delta") or {}
            piece = delta.get("content") or delta.get("reasoning_content") or ""
            if piece or choice.get("finish_reason"):
                last_s = at_s
                first_s = at_s if first_s is None else first_s
            text.append(piece)
        if event.get("usage"):
            usage = event["usage"]
        if isinstance(event.get("timings"), dict):  # llama.cpp
            cached = event["timings"].get("cache_n")
    if usage is None or first_s is None or last_s is None:
        raise BenchError(
            "the stream ended without usage; the server must support stream_options.include_usage"
        )
    details = usage.get("prompt_tokens_details")
    if isinstance(details, dict) and details.get("cached_tokens") is not None:
        cached = details["cached_tokens"]
    return ChatReading(
        text="".join(text),
        prompt_tokens=usage["prompt_tokens"],
        completion_tokens=usage["completion_tokens"],
        cached_tokens=cached,
        first_s=first_s - answer.started_s,
        last_s=last_s - answer.started_s,
    )


def _events(answer: Answer) -> list[tuple[float, dict[str, Any]]]:
    """The events with the arrival of their last byte."""
    events = []
    rest = b""
    for at_s, data in answer.pieces:
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:") and (value := line[5:].strip()) != b"[DONE]":
                try:
                    event = json.loads(value)
                except ValueError:
                    raise BenchError(f"the server sent an event that is not JSON: {value[:80]!r}") from None
                if isinstance(event, dict):
                    events.append((at_s, event))
    return events


def _error_message(body: bytes) -> str:
    """OpenAI's error message, or the beginning of whatever it is."""
    try:
        message = json.loads(body)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = body.decode("utf-8", errors="replace")
    return " ".join(str(message).split())[:_ERROR_CHARS]
