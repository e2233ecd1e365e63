"""`POST /v1/completions`: continuations of texts and of token ids."""

from __future__ import annotations

from typing import TYPE_CHECKING

from duologue.api.logprobs import TextLogprobs
from duologue.api.text import TextCompletionRequest, TextPrompt, parse_text_request
from duologue.api.text_replies import TextChoice, TextChunks, text_completion
from duologue.errors import InvalidRequestError
from duologue.server.endpoint import CompletionEndpoint, Replies, new_header, parsed
from duologue.server.generation import Generation, Job

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.types import Receive, Send

    from duologue.server.choice import Choice
    from duologue.server.mailbox import Arrival
    from duologue.server.metrics import RequestClock
    from duologue.server.models import ServedModel


class TextCompletions(CompletionEndpoint):
    """The endpoint."""

    async def _reply(
        self, body: bytes, tenant: str, receive: Receive, send: Send, clock: RequestClock
    ) -> str:
        request = await parsed(parse_text_request, body)
        model = self._models[request.model]
        clock.of_model(model.name)
        choices = request.n * len(request.prompt)
        params = await self._prepare(
            model.engine, request.sampling_params(), choices, request.structure_param
        )
        jobs = [Job(ids) for ids in await _ids(model, request.prompt)]
        scope = request.cache_scope(tenant)
        with (
            model.cache.running(scope) as running,
            Generation(model.engine, self._flights, self._postman, self._limits) as generation,
        ):
            try:
                generation.start(jobs, request.n, params, running, clock, receive)
            except InvalidRequestError as error:
                if error.param != "messages":
                    raise
                raise InvalidRequestError(str(error), param="prompt", code=error.code) from None
            replies = _TextReplies(model, request, jobs)
            reply = self._stream if request.stream else self._whole
            return await reply(generation, replies, send)


async def _ids(model: ServedModel, prompts: Sequence[TextPrompt]) -> list[Sequence[int]]:
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    encoded = iter(await model.prompts.encode_texts(texts))
    return [next(encoded) if isinstance(prompt, str) else prompt for prompt in prompts]


class _TextReplies(Replies):
    def __init__(self, model: ServedModel, request: TextCompletionRequest, jobs: Sequence[Job]) -> None:
        self._tokenizer = model.engine.tokenizer
        self._n = request.n
        self._with_logprobs = request.logprobs is not None
        self._echoes = [""] * len(jobs)
        if request.echo:
            self._echoes = [
                prompt if isinstance(prompt, str) else self._tokenizer.decode(prompt, skip_special=False)
                for prompt in request.prompt
            ]
        self._header = new_header("cmpl", model.name)
        choices = len(jobs) * request.n
        self._logprobs = [TextLogprobs(self._tokenizer) for _ in range(choices)]
        self._chunks = TextChunks(self._header, choices=choices, with_usage=request.include_usage)

    def whole(self, generation: Generation) -> bytes:
        choices = [
            TextChoice(
                self._echoes[choice.index // self._n] + choice.text,
                choice.finish_reason,
                self._logprobs[choice.index].of(choice.logprobs) if self._with_logprobs else None,
            )
            for choice in generation.choices
        ]
        return text_completion(self._header, choices, generation.usage)

    def begin(self, choices: int) -> bytes:
        return b"".join(
            self._chunks.delta(echo, index)
            for index, echo in ((index, self._echoes[index // self._n]) for index in range(choices))
            if echo
        )

    def chunk(self, choice: Choice, arrivals: list[Arrival]) -> bytes:
        text = "".join([event.text for _, event, _ in arrivals])
        logprobs = None
        if self._with_logprobs:
            entries = [entry for _, event, _ in arrivals for entry in event.logprobs]
            logprobs = self._logprobs[choice.index].of(entries)
        chunk = b""
        if text or (logprobs is not None and logprobs["tokens"]):
            chunk = self._chunks.delta(text, choice.index, logprobs)
        if choice.last is not None:
            chunk += self._chunks.finish(choice.finish_reason, choice.index)
        return chunk

    def end(self, generation: Generation) -> bytes:
        return self._chunks.end(generation.usage)
