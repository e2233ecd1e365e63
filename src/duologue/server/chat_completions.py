"""`POST /v1/chat/completions`: from a request's bytes to a whole or streamed reply."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from duologue.api.chat import ChatCompletionRequest, parse_chat_request
from duologue.api.chat_replies import ChatChoice, ChatChunks, chat_completion
from duologue.api.logprobs import chat_logprobs
from duologue.dialogue.encoder import without_end
from duologue.dialogue.tool_parser import ToolCallParser
from duologue.server.choice import Choice, ChoiceCalls
from duologue.server.endpoint import CompletionEndpoint, Replies, new_header, parsed
from duologue.server.generation import Generation, Job

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.types import Receive, Send

    from duologue.cache.scope import CacheScope
    from duologue.dialogue.encoded_dialogue import EncodedDialogue
    from duologue.dialogue.grammar import Grammar
    from duologue.engine.events import TokenLogprob
    from duologue.engine.request import PromptMarks
    from duologue.server.mailbox import Arrival
    from duologue.server.metrics import RequestClock
    from duologue.server.models import ServedModel
    from duologue.server.tenant_cache import Running

# Places in a long prompt take milliseconds to find, up to 30 in one long message: they are looked for in a thread.
_INLINE_LOOK_TOKENS = 1024


class ChatCompletions(CompletionEndpoint):
    """The endpoint."""

    async def _reply(
        self, body: bytes, tenant: str, receive: Receive, send: Send, clock: RequestClock
    ) -> str:
        request = await parsed(parse_chat_request, body)
        model = self._models[request.model]
        clock.of_model(model.name)
        with model.cache.running(request.cache_scope(tenant)) as running:
            return await self._generate(model, request, running, receive, send, clock)

    async def _generate(
        self,
        model: ServedModel,
        request: ChatCompletionRequest,
        running: Running,
        receive: Receive,
        send: Send,
        clock: RequestClock,
    ) -> str:
        grammar, param = _grammar(model, request)
        params = model.engine.chat_params(request.sampling_params(grammar))
        params = await self._prepare(model.engine, params, request.n, param)
        prompt = await model.prompts.encode(request, running.scope)
        report, marks = await _look(model, request, prompt, running.scope)
        reads_calls = _may_call(request, grammar)
        replies = _ChatReplies(model, request, report)
        job = Job(prompt.ids, marks, model.call_ids if reads_calls else frozenset())
        with Generation(model.engine, self._flights, self._postman, self._limits) as generation:
            generation.start([job], request.n, params, running, clock, receive)
            if reads_calls:
                replies.read_calls(generation)
            try:
                reply = self._stream if request.stream else self._whole
                return await reply(generation, replies, send)
            finally:
                # Also what was stopped half-way: the client may continue it.
                if not running.forgotten:
                    _remember(model, request, running.scope, prompt, generation)


def _grammar(model: ServedModel, request: ChatCompletionRequest) -> tuple[Grammar | None, str]:
    """What the reply must look like, and the field that says so. Raises `InvalidRequestError`."""
    choice = request.choice_of_tools
    tools = model.tools if request.uses_tools else None  # also refuses what the template does not know
    if tools is None or not choice.is_forced:
        return request.structure(), request.structure_param
    one = choice.mode == "named" or not request.parallel_tool_calls
    functions = request.template_tools() or []
    return tools.grammar(functions, model.engine.tokenizer, one=one, name=choice.name), "tools"


def _may_call(request: ChatCompletionRequest, grammar: Grammar | None) -> bool:
    """Whether what looks like a call is one: not in a reply whose form the client has chosen itself."""
    choice = request.choice_of_tools
    return choice.mode != "none" and (grammar is None or choice.is_forced)


async def _look(
    model: ServedModel, request: ChatCompletionRequest, prompt: EncodedDialogue, scope: CacheScope
) -> tuple[dict[str, Any] | None, PromptMarks]:
    """What of a prompt is stored, before the prompt itself is."""

    def look() -> tuple[dict[str, Any] | None, PromptMarks]:
        miss, hints = model.cache.look(prompt, scope)
        report = model.cache.report(prompt, miss) if request.explain_cache else None
        return report, model.marks(prompt, hints)

    if len(prompt.ids) <= _INLINE_LOOK_TOKENS:
        return look()
    return await asyncio.get_running_loop().run_in_executor(None, look)


def _remember(
    model: ServedModel,
    request: ChatCompletionRequest,
    scope: CacheScope,
    prompt: EncodedDialogue,
    generation: Generation,
) -> None:
    end_ids = () if request.ignore_eos else model.engine.tokenizer.eos_ids
    for choice in generation.choices:
        # A reply with calls comes back in the template's words.
        if choice.calls is None or not choice.calls.made:
            ids = without_end(choice.token_ids, end_ids)
            model.prompts.remember(scope, prompt, choice.text, ids)


class _ChatReplies(Replies):
    def __init__(
        self, model: ServedModel, request: ChatCompletionRequest, report: Mapping[str, Any] | None
    ) -> None:
        self._model = model
        self._request = request
        self._report = report
        self._header = new_header("chatcmpl", model.name)
        self._chunks = ChatChunks(self._header, choices=request.n, with_usage=request.include_usage)

    def read_calls(self, generation: Generation) -> None:
        """Looks for calls in the choices."""
        names = {tool["function"]["name"] for tool in self._request.template_tools() or []}
        most = {} if self._request.parallel_tool_calls else {"max_calls": 1}
        for choice in generation.choices:
            choice.calls = ChoiceCalls(ToolCallParser(self._model.tools.markers, names, **most))

    def whole(self, generation: Generation) -> bytes:
        return chat_completion(
            self._header,
            [self._choice(choice) for choice in generation.choices],
            generation.usage,
            self._report,
        )

    def _choice(self, choice: Choice) -> ChatChoice:
        logprobs = self._logprobs(choice.logprobs) if self._request.logprobs else None
        if choice.calls is None:
            return ChatChoice(choice.text, choice.finish_reason, (), logprobs)
        return ChatChoice(choice.calls.text, choice.finish_reason, choice.calls.made, logprobs)

    def begin(self, choices: int) -> bytes:
        return b"".join(self._chunks.role(index) for index in range(choices))

    def chunk(self, choice: Choice, arrivals: list[Arrival]) -> bytes:
        if len(arrivals) == 1:
            text = arrivals[0][1].text
        else:
            text = "".join([event.text for _, event, _ in arrivals])
        logprobs = None
        if self._request.logprobs:
            logprobs = self._logprobs([entry for _, event, _ in arrivals for entry in event.logprobs])
        if choice.calls is not None:
            chunk = self._call_chunks(choice, choice.calls, logprobs)
        elif text or (logprobs is not None and logprobs["content"]):
            chunk = self._chunks.delta(text, choice.index, logprobs)
        else:
            chunk = b""
        if choice.last is not None:
            chunk += self._chunks.finish(choice.finish_reason, choice.index, self._report)
        return chunk

    def _call_chunks(self, choice: Choice, calls: ChoiceCalls, logprobs: dict[str, Any] | None) -> bytes:
        chunk = b"" if logprobs is None else self._chunks.delta("", choice.index, logprobs)
        for piece in choice.pieces:
            if isinstance(piece, str):
                chunk += self._chunks.delta(piece, choice.index)
            else:
                chunk += self._chunks.call(piece, calls.made[piece.number][0], choice.index)
        choice.pieces.clear()
        return chunk

    def _logprobs(self, entries: list[TokenLogprob]) -> dict[str, Any]:
        return chat_logprobs(self._model.engine.tokenizer, entries)

    def end(self, generation: Generation) -> bytes:
        return self._chunks.end(generation.usage)
