"""The embedded engine: a model, its KV pool, and a thread that runs forward steps for any number of requests."""

from __future__ import annotations

import atexit
import functools
import hashlib
import logging
import secrets
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt

from duologue.cache.geometry import KvGeometry
from duologue.cache.kv_cache import CacheLookup, ForgetResult, KvCache
from duologue.cache.scope import DEFAULT_SCOPE, CacheScope
from duologue.dialogue.detokenizer import Detokenizer
from duologue.dialogue.grammar import Grammar
from duologue.dialogue.stop import StopMatcher
from duologue.dialogue.template import ChatTemplate
from duologue.dialogue.tokenizer import Tokenizer
from duologue.engine.events import EngineStats, TokenEvent
from duologue.engine.grammars import Grammars
from duologue.engine.load import load_for_engine
from duologue.engine.request import NO_MARKS, PromptMarks, Request
from duologue.engine.runner import Runner
from duologue.engine.sampling_params import SamplingParams
from duologue.engine.scheduler import SchedulerConfig
from duologue.engine.script_interface import ScriptInterface
from duologue.engine.threads import default_threads
from duologue.engine.worker import Worker
from duologue.errors import EngineStoppedError, InvalidRequestError
from duologue.kernels import PAGE_TOKENS
from duologue.models.load import PackedModel

DEFAULT_KV_MEMORY_BYTES = 1 << 30
NUMERICS_VERSION = 2
"""Raise it when equal tokens and weights come to give other KV."""
_log = logging.getLogger(__name__)


class Engine(ScriptInterface):
    """Loads one model and serves many requests at once.

    `submit`, `abort`, `stats` and `drain` may be called from any thread. Use as a context manager, or call `close`.
    """

    def __init__(
        self,
        model: PackedModel,
        *,
        kv_memory_bytes: int | None = None,
        threads: int | None = None,
        scheduler: SchedulerConfig | None = None,
        context_tokens: int | None = None,
        isa: str = "",
    ) -> None:
        native = model.native()
        config = scheduler or SchedulerConfig()
        geometry = KvGeometry.for_budget(
            DEFAULT_KV_MEMORY_BYTES if kv_memory_bytes is None else kv_memory_bytes,
            page_tokens=PAGE_TOKENS,
            global_page_bytes=native.global_page_bytes,
            local_page_bytes=native.local_page_bytes,
            window_tokens=max(layer.window for layer in model.spec.layers),
            step_tokens=config.max_batch_tokens,
        )
        limit = model.spec.context_tokens if context_tokens is None else context_tokens
        if not 1 < limit <= model.spec.context_tokens:
            raise InvalidRequestError(
                f"context {limit} must be between 2 and the model's {model.spec.context_tokens} tokens",
                param="context",
                code="invalid_value",
            )
        self.model_name = model.name
        self._hold = model.hold
        self.spec = model.spec
        self.context_tokens = min(limit, geometry.global_pages * PAGE_TOKENS)
        self.kv_memory_bytes = geometry.total_bytes
        self.kv_limits_context = self.context_tokens < limit
        self.tokenizer = Tokenizer.from_bytes(model.tokenizer)
        self.template = ChatTemplate.for_tokenizer(model.chat_template, self.tokenizer)
        self._grammars = Grammars(self.tokenizer, model.spec.vocab_size)
        self._weight_bytes = model.weight_bytes
        self._runner = Runner(
            native,
            vocab_size=model.spec.vocab_size,
            page_count=geometry.global_pages,
            local_page_count=geometry.local_pages,
            threads=default_threads() if threads is None else threads,
            isa=isa,
        )
        self.cache = KvCache(geometry, space=_kv_space(model), copy_page=self._runner.copy_page)
        self._worker = Worker(self._runner, self.cache, config, self._note_finished)
        self._scheduler = self._worker.scheduler
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)  # new requests, aborts, stop; and requests finishing
        self._incoming: deque[Request] = deque()
        self._unfinished = 0
        self._next_number = 0
        self._stopping = False
        self._failure: str | None = None
        self._requests_total = 0
        self._prompt_tokens_total = 0
        # The thread holds the engine weakly between steps, so an engine that is dropped without close() still ends.
        self._thread = threading.Thread(
            target=_run_loop, args=(weakref.ref(self), self._changed), name="duologue-engine", daemon=True
        )
        self._thread.start()
        # A daemon thread that comes back from native code while the interpreter goes down aborts the process.
        self._close_at_exit = functools.partial(_close, weakref.ref(self))
        atexit.register(self._close_at_exit)

    @classmethod
    def load(
        cls,
        model: str | Path,
        *,
        kv_memory_bytes: int | None = None,
        threads: int | None = None,
        max_batch_tokens: int = SchedulerConfig.max_batch_tokens,
        max_num_seqs: int = SchedulerConfig.max_num_seqs,
        context_tokens: int | None = None,
        speculation_tokens: int = SchedulerConfig.speculation_tokens,
        progress: bool = False,
    ) -> Engine:
        """Load a model by alias, GGUF path or Hugging Face folder; the first time it is quantised and packed.

        Raises ModelLoadError, UnsupportedModelError or CapacityError.
        """
        scheduler = SchedulerConfig(
            max_batch_tokens=max_batch_tokens,
            max_num_seqs=max_num_seqs,
            speculation_tokens=speculation_tokens,
        )
        return cls(
            load_for_engine(model, progress=progress),
            kv_memory_bytes=kv_memory_bytes,
            threads=threads,
            scheduler=scheduler,
            context_tokens=context_tokens,
        )

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def compile_grammar(self, grammar: Grammar, *, param: str | None = None) -> None:
        """Compile a grammar and keep it, so that `submit` finds it ready. From any thread; may take a second.

        Raises InvalidRequestError naming `param` for one that is wrong, unsupported or beyond the limits.
        """
        self._grammars.start(grammar, param=param)

    def submit(
        self,
        prompt_ids: Sequence[int] | npt.NDArray[np.int32],
        params: SamplingParams,
        on_event: Callable[[TokenEvent], None],
        *,
        scope: CacheScope = DEFAULT_SCOPE,
        marks: PromptMarks = NO_MARKS,
        choice: int = 0,
        shown_ids: frozenset[int] = frozenset(),
    ) -> Request:
        """Queue a request. `on_event` is called on the engine's thread and must neither block nor raise.

        `scope` says with whom its KV may be shared and how it can be forgotten, `marks` what is known of the prompt's turns.
        Choices of one prompt and seed differ in their noise. Control tokens of `shown_ids` are spelled in the reply, others are
        not. A grammar is compiled here unless `compile_grammar` has done so.

        Raises InvalidRequestError when the prompt is empty, holds unknown ids or leaves no room for a reply, for parameters that
        name unknown ids and for a grammar that cannot be used; EngineStoppedError after `close` or a failure.
        """
        if not len(prompt_ids):
            raise InvalidRequestError("the prompt is empty", param="messages", code="empty_prompt")
        if len(prompt_ids) >= self.context_tokens:
            why = " (limited by the KV budget; raise --kv-memory)" if self.kv_limits_context else ""
            raise InvalidRequestError(
                f"the prompt has {len(prompt_ids)} tokens, but the context of {self.context_tokens} tokens{why} "
                "must hold the prompt and at least one token of reply; shorten the messages",
                param="messages",
                code="context_length_exceeded",
            )
        ids = np.asarray(prompt_ids)
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= self.spec.vocab_size:
            raise InvalidRequestError(
                f"token id {low if low < 0 else high} is outside the vocabulary of {self.spec.vocab_size}",
                param="prompt",
                code="invalid_value",
            )
        params.require_vocabulary(self.spec.vocab_size)
        room = self.context_tokens - len(prompt_ids)
        reply_tokens = room if params.max_tokens is None else min(params.max_tokens, room)
        eos_ids = frozenset() if params.ignore_eos and params.grammar is None else self.tokenizer.eos_ids
        request = Request(
            0,
            ids,
            params,
            seed=secrets.randbits(64) if params.seed is None else params.seed,
            max_total_tokens=len(prompt_ids) + reply_tokens,
            on_event=on_event,
            detokenizer=Detokenizer(self.tokenizer, shown_ids=shown_ids),
            stop_matcher=StopMatcher(params.stop) if params.stop else None,
            choice=choice,
            scope=scope,
            marks=marks,
            end_ids=eos_ids.union(params.stop_token_ids),
            grammar=self._grammars.start(params.grammar, param="grammar") if params.grammar else None,
        )
        with self._lock:
            self.require_running()
            request.number = self._next_number
            self._next_number += 1
            self._unfinished += 1
            self._requests_total += 1
            self._prompt_tokens_total += request.prompt_tokens
            self._incoming.append(request)
            self._changed.notify_all()
        return request

    def abort(self, request: Request) -> None:
        """Stop a request; its last event says "abort". Nothing happens when it has finished."""
        with self._lock:
            request.abort_requested = True
            self._changed.notify_all()

    def cache_lookup(
        self, prompt_ids: Sequence[int] | npt.NDArray[np.int32], scope: CacheScope = DEFAULT_SCOPE
    ) -> CacheLookup:
        """How much of a prompt is stored. From any thread; runs nothing and changes nothing. Raises as `require_running`."""
        self.require_running()
        return self.cache.lookup(np.asarray(prompt_ids, dtype=np.int32), scope.salt)

    def cache_forget(self, tenant: str, key: str) -> ForgetResult:
        """Remove for good what was stored under a `prompt_cache_key`, as far as no other key reaches it. Raises as
        `require_running`."""
        self.require_running()
        return self.cache.forget(tenant, key)

    def cache_forget_salt(self, salt: bytes) -> ForgetResult:
        """Remove for good everything that was stored under a salt. Raises as `require_running`."""
        self.require_running()
        return self.cache.forget_salt(salt)

    def stats(self) -> EngineStats:
        """Counters and gauges, a consistent enough snapshot for metrics."""
        worker, scheduler, cache = self._worker, self._scheduler, self.cache.stats()
        geometry = self.cache.geometry
        stored_bytes = (
            cache.stored_pages[0] * geometry.global_page_bytes
            + cache.stored_pages[1] * geometry.local_page_bytes
        )
        return EngineStats(
            running=len(scheduler.running),
            waiting=self.waiting,
            requests_total=self._requests_total,
            aborted_total=worker.aborted_total,
            preemptions_total=scheduler.preemptions_total,
            prompt_tokens_total=self._prompt_tokens_total,
            computed_tokens_total=worker.computed_tokens_total,
            completion_tokens_total=worker.completion_tokens_total,
            steps_total=worker.steps_total,
            step_s_total=worker.step_s_total,
            forward_s_total=self._runner.forward_s_total,
            kv_pages_total=sum(cache.total_pages),
            kv_pages_free=sum(cache.free_pages) + sum(cache.evictable_pages),
            kv_memory_bytes=self.kv_memory_bytes,
            kv_bytes_per_token=self.spec.kv_bytes_per_token,
            workspace_bytes=self._runner.workspace_bytes,
            weight_bytes=self._weight_bytes,
            cache_pages=sum(cache.stored_pages),
            cache_bytes=stored_bytes,
            cache_tokens=cache.stored_tokens,
            cache_checkpoints=cache.checkpoints,
            cache_hit_tokens_total=worker.hit_tokens_total,
            cache_miss_tokens_total={cause.value: count for cause, count in worker.miss_tokens_total.items()},
            cache_evicted_pages_total=sum(cache.evicted_pages),
            cache_index_bytes=cache.index_bytes,
            drafted_tokens_total=worker.drafted_tokens_total,
            accepted_tokens_total=worker.accepted_tokens_total,
        )

    @property
    def waiting(self) -> int:
        """Requests that hold no pages yet."""
        return len(self._scheduler.waiting) + len(self._incoming)

    @property
    def failure(self) -> str | None:
        """Why the engine's thread died, or None while it is well."""
        return self._failure

    def require_running(self) -> None:
        """Raise EngineStoppedError after `close` or a failure: nothing that the engine holds is of use any more."""
        if self._failure is not None:
            raise EngineStoppedError(f"the engine has failed: {self._failure}")
        if self._stopping:
            raise EngineStoppedError("the engine is closed")

    def drain(self, timeout_s: float | None = None) -> bool:
        """Wait until every accepted request has finished; False when the time ran out first."""
        with self._lock:
            return self._changed.wait_for(lambda: self._unfinished == 0, timeout_s)

    def close(self) -> None:
        """Abort what runs and end the engine's thread. Idempotent."""
        with self._lock:
            self._stopping = True
            self._changed.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join()
        atexit.unregister(self._close_at_exit)

    def check_integrity(self) -> None:
        """Raise an error when pages and requests disagree. Only while nothing runs."""
        self._scheduler.check_integrity()

    # ---- the engine's thread ----

    def _take_news(self) -> bool:
        """With the lock held: move new requests to the scheduler. True when the loop has something to do."""
        while self._incoming:
            self._scheduler.add(self._incoming.popleft())
        return self._scheduler.has_work

    def _note_finished(self, request: Request) -> None:
        with self._lock:
            self._unfinished -= 1
            self._changed.notify_all()

    def _stop_everything(self, failure: str | None) -> None:
        with self._lock:
            self._stopping = True
            self._failure = failure
            self._take_news()
        for request in list(self._scheduler.requests()):
            try:
                if failure is None:
                    self._worker.finish(request, "abort")
                else:
                    self._worker.finish(request, "error", flush=False, error=failure)
            except Exception:  # a callback that raises must not keep the others from hearing that it is over
                _log.exception("telling request %d that the engine stops failed", request.number)


def _close(reference: weakref.ref[Engine]) -> None:
    engine = reference()
    if engine is not None:
        engine.close()


def _run_loop(reference: weakref.ref[Engine], changed: threading.Condition) -> None:
    """The engine's thread. It keeps no strong reference while idle, so that a forgotten engine can be collected."""
    while True:
        engine = reference()
        if engine is None:
            return
        with changed:
            busy = engine._take_news()
            stopping = engine._stopping
            if not busy and not stopping:
                del engine
                changed.wait(timeout=1.0)
                continue
        if stopping:
            engine._stop_everything(None)
            return
        try:
            engine._worker.step()
        except Exception as error:
            # A step fails only through a bug or corrupt weights: nothing computed from here on could be trusted.
            _log.exception("the engine's step failed")
            engine._stop_everything(f"{type(error).__name__}: {error}")
            return


def _kv_space(model: PackedModel) -> bytes:
    """What tells apart models whose KV must not be mixed: the layer spec, the KV layout, and the weights.

    The latter by the key of their packed file where they have one: hashing 135 MB would take as long as the rest of the start.
    """
    digest = hashlib.blake2b(f"{NUMERICS_VERSION} {PAGE_TOKENS} {model.spec.to_json()} {model.key}".encode())
    if not model.key:
        for name in sorted(model.arrays):
            digest.update(name.encode())
            digest.update(model.arrays[name].tobytes())
    return digest.digest()
