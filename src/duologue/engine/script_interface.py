"""Prompts as people write them, and whole replies: what a script wants of an engine that takes ids and gives events."""

from __future__ import annotations

import dataclasses
import queue
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from duologue.cache.scope import DEFAULT_SCOPE, CacheScope
from duologue.dialogue.template import ChatTemplate
from duologue.dialogue.tokenizer import Tokenizer
from duologue.engine.events import Completion, TokenEvent
from duologue.engine.request import NO_MARKS, PromptMarks, Request
from duologue.engine.sampling_params import SamplingParams
from duologue.errors import EngineStoppedError

Prompt = str | Sequence[int] | Sequence[Mapping[str, Any]]


class ScriptInterface(ABC):
    """Built on `submit` and `abort`, which the engine has."""

    tokenizer: Tokenizer
    template: ChatTemplate

    @abstractmethod
    def submit(
        self,
        prompt_ids: Sequence[int] | npt.NDArray[np.int32],
        params: SamplingParams,
        on_event: Callable[[TokenEvent], None],
        *,
        scope: CacheScope = DEFAULT_SCOPE,
        marks: PromptMarks = NO_MARKS,
        choice: int = 0,
    ) -> Request:
        """Queue a request."""

    @abstractmethod
    def abort(self, request: Request) -> None:
        """Stop a request."""

    def encode_chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Token ids of a chat, up to where the reply begins. Raises TemplateError or InvalidRequestError."""
        return self.template.encode_chat(self.tokenizer, messages)

    def chat_params(self, params: SamplingParams) -> SamplingParams:
        """`params` for the reply in a chat: it also ends where the template says so, unless ends are to be ignored."""
        if not self.template.stops or params.ignore_eos:
            return params
        return dataclasses.replace(params, stop=(*params.stop, *self.template.stops))

    def _params_of(self, prompt: Prompt, params: SamplingParams) -> SamplingParams:
        return self.chat_params(params) if _is_chat(prompt) else params

    def encode_prompt(self, prompt: Prompt) -> list[int]:
        """Token ids of a text, a chat, or ids as they are."""
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt, add_bos=self.tokenizer.adds_bos)
        if _is_chat(prompt):
            return self.encode_chat(cast(Sequence[Mapping[str, Any]], prompt))
        return [int(token) for token in cast(Sequence[int], prompt)]

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[TokenEvent]:
        """Events of one request as they come. Leaving the iterator early aborts the request."""
        events: queue.SimpleQueue[TokenEvent] = queue.SimpleQueue()
        params = self._params_of(prompt, params or SamplingParams())
        request = self.submit(self.encode_prompt(prompt), params, events.put)
        try:
            while True:
                event = events.get()
                if event.finish_reason == "error":
                    raise EngineStoppedError(event.error or "the engine failed")
                yield event
                if event.finish_reason is not None:
                    return
        finally:
            self.abort(request)

    def generate(self, prompt: Prompt, params: SamplingParams | None = None) -> Completion:
        """One whole reply."""
        return self.generate_batch([prompt], params)[0]

    def generate_choices(
        self, prompt: Prompt, n: int, params: SamplingParams | None = None
    ) -> list[Completion]:
        """`n` replies to one prompt, which is computed once. With temperature 0 they are equal."""
        ids = self.encode_prompt(prompt)
        params = self._params_of(prompt, params or SamplingParams())
        if params.seed is None:
            params = dataclasses.replace(params, seed=secrets.randbits(64))
        return self._run_all([ids] * n, [params] * n, choices=range(n))

    def generate_batch(
        self, prompts: Sequence[Prompt], params: SamplingParams | None = None
    ) -> list[Completion]:
        """Whole replies to several prompts, computed together. Raises as `submit`; then nothing of the batch runs on."""
        return self._run_all(
            [self.encode_prompt(prompt) for prompt in prompts],
            [self._params_of(prompt, params or SamplingParams()) for prompt in prompts],
            choices=[0] * len(prompts),
        )

    def _run_all(
        self, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams], choices: Sequence[int]
    ) -> list[Completion]:
        done: queue.SimpleQueue[int] = queue.SimpleQueue()
        logs: list[list[TokenEvent]] = [[] for _ in prompts]

        def collect(index: int) -> Callable[[TokenEvent], None]:
            def on_event(event: TokenEvent) -> None:
                logs[index].append(event)
                if event.finish_reason is not None:
                    done.put(index)

            return on_event

        requests: list[Request] = []
        try:
            for index, (ids, own, choice) in enumerate(zip(prompts, params, choices, strict=True)):
                requests.append(self.submit(ids, own, collect(index), choice=choice))
            for _ in requests:
                done.get()
        finally:
            for request in requests:
                self.abort(request)
        return [_completion(log) for log in logs]


def _is_chat(prompt: Prompt) -> bool:
    return not isinstance(prompt, str) and len(prompt) > 0 and isinstance(prompt[0], Mapping)


def _completion(events: Sequence[TokenEvent]) -> Completion:
    last = events[-1]
    if last.finish_reason == "error":
        raise EngineStoppedError(last.error or "the engine failed")
    assert last.finish_reason is not None
    return Completion(
        text="".join(event.text for event in events),
        token_ids=tuple(token for event in events for token in event.token_ids),
        finish_reason=last.finish_reason,
        prompt_tokens=last.prompt_tokens,
        cached_tokens=last.cached_tokens,
        completion_tokens=last.completion_tokens,
        logprobs=tuple(logprob for event in events for logprob in event.logprobs),
    )
