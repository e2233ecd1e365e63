"""Running a service: the event loop, signals, and the drain at the end.

uvicorn's own shutdown closes the listener first, so a load balancer would see refused connections instead
of an unready server. Here the first SIGTERM or Ctrl-C makes `/ready` false and refuses new chats, while the
running streams go on; the listener closes when the last one is done or the drain's time is up. A second
signal ends everything at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import uvicorn

from duologue.api.tenants import AnonymousTenants, KeyFileTenants
from duologue.dialogue.default_template import DEFAULT_WARNING
from duologue.dialogue.template_lint import lint_template
from duologue.server.app import Service, create_service
from duologue.server.bind import is_loopback

if TYPE_CHECKING:
    from duologue.api.tenants import Tenants
    from duologue.dialogue.template import ChatTemplate
    from duologue.dialogue.tokenizer import Tokenizer
    from duologue.engine.engine import Engine
    from duologue.server.limits import Limits
    from duologue.server.warm import Warmer

logger = logging.getLogger("duologue.server")

# What is left to do after the drain is to write out the last bytes.
_CLOSE_TIMEOUT_S = 2
_BACKLOG = 1024


class Server:
    """Serves engines until told to stop; they stay open. `stop` may be called from any thread.

    With a `warmer` the cache of its engine is filled once the listener is open; until that is done `/ready` is false.
    """

    def __init__(
        self,
        engines: Engine | Mapping[str, Engine],
        sock: socket.socket,
        *,
        tenants: Tenants | None = None,
        warmer: Warmer | None = None,
        drain_timeout_s: float = 30.0,
        limits: Limits | None = None,
        cors_origins: Sequence[str] = (),
        host: str = "localhost",
        any_host: bool = False,
        access_log: bool = False,
    ) -> None:
        """`engines` by the names that clients use; a single one may go by its own.

        Without tenants and on a loopback address, requests to other names than this machine's (`host` is one), or from pages of
        other origins, are refused unless `any_host`.
        """
        self._engines = engines if isinstance(engines, Mapping) else {engines.model_name: engines}
        self._sock = sock
        self._tenants: Tenants = tenants or AnonymousTenants()
        self._warmer = warmer
        self._drain_timeout_s = drain_timeout_s
        self._limits = limits
        self._cors_origins = tuple(cors_origins)
        is_open = isinstance(self._tenants, AnonymousTenants) and not any_host
        self._local_names = (host,) if is_open and is_loopback(sock) else None
        self._access_log = access_log
        self._loop: asyncio.AbstractEventLoop | None = None
        self._service: Service | None = None
        self._http: _HttpServer | None = None
        self._drain: asyncio.Task[None] | None = None
        self._warming: asyncio.Task[None] | None = None

    def run(self, on_ready: Callable[[], None] = lambda: None, *, handle_signals: bool = True) -> None:
        """Blocks until the server has stopped. `on_ready` is called once requests are answered and the cache is warm.

        With `handle_signals` (main thread only) SIGTERM and SIGINT stop the server, and SIGHUP reads the API keys again
        or, without a file of keys, stops it too. Raises what the warmer raises.
        """
        _run_loop(self._serve(on_ready, handle_signals))

    def stop(self) -> None:
        """Starts the drain; the second call ends everything at once, later ones do nothing."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._on_stop)

    async def _serve(self, on_ready: Callable[[], None], handle_signals: bool) -> None:
        self._loop = loop = asyncio.get_running_loop()
        self._service = create_service(
            self._engines, self._tenants, self._limits, self._cors_origins, self._local_names
        )
        if self._warmer is not None:
            self._service.flights.warming = True
            for model, scope in self._warmer.scopes:
                self._service.models[model].cache.note(scope)
        self._http = _HttpServer(
            uvicorn.Config(
                self._service.app,
                loop="none",
                http="httptools",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=self._access_log,
                proxy_headers=False,
                server_header=False,
                backlog=_BACKLOG,
                # Longer than clients keep idle connections, so that it is they who close.
                timeout_keep_alive=75,
                timeout_graceful_shutdown=_CLOSE_TIMEOUT_S,
            ),
            lambda: self._on_started(on_ready),
        )
        if handle_signals:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self._on_stop)
            if isinstance(self._tenants, KeyFileTenants):
                loop.add_signal_handler(signal.SIGHUP, self._tenants.reload)
            elif signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under nohup
                loop.add_signal_handler(signal.SIGHUP, self._on_stop)
        await self._http.serve(sockets=[self._sock])
        if self._warming is not None:
            await self._warming

    def _on_started(self, on_ready: Callable[[], None]) -> None:
        for name, engine in self._engines.items():
            if engine.template.is_default:
                logger.warning("%s", DEFAULT_WARNING.format(name=name))
            else:
                asyncio.get_running_loop().run_in_executor(
                    None, _warn_about_template, engine.template, engine.tokenizer
                )
        if self._warmer is None:
            on_ready()
        else:
            self._warming = asyncio.ensure_future(self._warm(self._warmer, on_ready))

    async def _warm(self, warmer: Warmer, on_ready: Callable[[], None]) -> None:
        assert self._service is not None
        assert self._http is not None
        try:
            await asyncio.get_running_loop().run_in_executor(None, warmer.run)
        except BaseException:
            self._http.should_exit = True
            raise
        self._service.flights.warming = False
        if not self._service.flights.draining:
            on_ready()

    def _on_stop(self) -> None:
        assert self._service is not None
        assert self._http is not None
        if self._warmer is not None:
            self._warmer.cancel()
        if self._drain is None:
            if running := self._service.flights.count:
                logger.warning(
                    "stopping: %d replies have up to %g s to finish; a second signal ends them",
                    running,
                    self._drain_timeout_s,
                )
            self._drain = asyncio.ensure_future(self._drain_then_exit(self._service, self._http))
        else:
            self._service.flights.abort_all()
            self._http.should_exit = self._http.force_exit = True

    async def _drain_then_exit(self, service: Service, http: _HttpServer) -> None:
        if not await service.flights.drain(self._drain_timeout_s):
            logger.warning("stopped the replies that were not done after %g s", self._drain_timeout_s)
        http.should_exit = True


def _warn_about_template(template: ChatTemplate, tokenizer: Tokenizer) -> None:
    """Says what in the chat template keeps dialogues from being found in the cache."""
    for finding in lint_template(template.source, tokenizer, template.bos, template.eos):
        logger.warning("%s", finding.warning)


class _HttpServer(uvicorn.Server):
    """uvicorn without its own signal handling, and with a word when it is up."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_ready()


def _run_loop(main: Coroutine[Any, Any, None]) -> None:
    try:
        import uvloop
    except ImportError:  # not available on every platform
        asyncio.run(main)
    else:
        uvloop.run(main)
