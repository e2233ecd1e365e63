"""The request of `POST /v1/chat/completions`: schema, limits, and the way from bytes to a checked object."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from duologue.api.body import json_object
from duologue.api.messages import MAX_MESSAGES, ChatMessage
from duologue.api.sampling_fields import (
    MAX_TOP_LOGPROBS,
    SamplingFields,
    Tokens,
    checked,
    contradiction,
    refuse_contradictions,
)
from duologue.api.structure import ResponseFormat, with_structured_outputs
from duologue.api.tools import MAX_TOOLS, Tool, ToolChoice, ToolChoiceField
from duologue.api.unsupported import CHAT_FIELDS, implemented_fields
from duologue.dialogue.grammar import Grammar
from duologue.dialogue.truncation import Truncation
from duologue.dialogue.volatile import VolatileInsert, parse_volatile
from duologue.engine.sampling_params import SamplingParams

__all__ = ["ChatCompletionRequest", "ChatMessage", "parse_chat_request"]

_VOLATILE_SCHEMA = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            "role": {"type": "string"},
            "content": {"type": "string"},
            "placement": {"enum": ["freeze", "tail"]},
        },
        "required": ["content"],
    },
}


class ChatCompletionRequest(SamplingFields):
    """The implemented fields. Extensions: those of `SamplingFields`, `explain_cache`, `continue_final_message`, `volatile`,
    and `truncation` as in OpenAI's Responses API with its sizes in tokens."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: Tokens | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] = 0
    response_format: ResponseFormat | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] = Field(default_factory=list)
    tool_choice: ToolChoiceField | None = None
    parallel_tool_calls: bool = True
    explain_cache: bool = False
    continue_final_message: bool = False
    truncation: Literal["auto", "disabled"] = "disabled"
    truncation_step: Tokens | None = None
    truncation_reserve: Tokens | None = None
    volatile: Annotated[
        tuple[VolatileInsert, ...] | None, BeforeValidator(parse_volatile), WithJsonSchema(_VOLATILE_SCHEMA)
    ] = None

    @property
    def choice_of_tools(self) -> ToolChoice:
        """Whether to call functions; OpenAI's default is "auto" when there are any."""
        return self.tool_choice or ToolChoice(mode="auto" if self.tools else "none")

    @property
    def uses_tools(self) -> bool:
        """Whether only a template that knows tools can take it."""
        return bool(self.tools) or any(message.uses_tools for message in self.messages)

    @property
    def structure_param(self) -> str:
        """The field that says what the reply looks like."""
        return "response_format" if self.structured_outputs is None else "structured_outputs"

    def cut(self, context_tokens: int) -> Truncation | None:
        """How to cut a dialogue that is too long for the context, or None when that is an error.

        Raises `InvalidRequestError` for sizes that contradict the context.
        """
        if self.truncation == "disabled":
            return None
        default = Truncation.of_context(context_tokens)
        reserve_tokens = self.truncation_reserve or default.reserve_tokens
        step_tokens = self.truncation_step or min(
            default.step_tokens, max(1, context_tokens - reserve_tokens)
        )
        return Truncation(context_tokens, step_tokens, reserve_tokens)

    def template_messages(self) -> list[dict[str, Any]]:
        """The messages as chat templates expect them."""
        return [message.template_dict() for message in self.messages]

    def template_tools(self) -> list[dict[str, Any]] | None:
        """The functions as chat templates expect them; None when there are none."""
        if self.choice_of_tools.mode == "none":
            return None
        return [tool.template_dict() for tool in self.tools] or None

    def structure(self) -> Grammar | None:
        """What the reply has to look like, calls of functions aside. Raises `InvalidRequestError`."""
        if self.structured_outputs is not None:
            return self.structured_outputs.as_grammar()
        return None if self.response_format is None else self.response_format.grammar()

    def sampling_params(self, grammar: Grammar | None = None) -> SamplingParams:
        """The engine's view of the request."""
        return self.engine_params(
            max_tokens=self.max_completion_tokens if self.max_tokens is None else self.max_tokens,
            logprobs=self.top_logprobs if self.logprobs else None,
            grammar=grammar,
        )


def parse_chat_request(body: bytes) -> ChatCompletionRequest:
    """Checks a request body. Raises `InvalidRequestError` that names the first wrong field (`param`)."""
    fields = implemented_fields(json_object(body), CHAT_FIELDS)
    request = checked(ChatCompletionRequest, with_structured_outputs(fields))
    limits = (request.max_tokens, request.max_completion_tokens)
    if None not in limits and limits[0] != limits[1]:
        raise contradiction(
            "max_tokens",
            "'max_tokens' and 'max_completion_tokens' differ; send only 'max_completion_tokens'.",
        )
    refuse_contradictions(request, limits[0] or limits[1])
    for name in ("truncation_step", "truncation_reserve"):
        if getattr(request, name) is not None and request.truncation == "disabled":
            raise contradiction(name, f"'{name}' is only allowed when 'truncation' is \"auto\".")
    if request.top_logprobs and not request.logprobs:
        raise contradiction("top_logprobs", "'top_logprobs' is only allowed when 'logprobs' is true.")
    _refuse_contradicting_tools(request)
    return request


def _refuse_contradicting_tools(request: ChatCompletionRequest) -> None:
    choice = request.choice_of_tools
    names = [tool.function.name for tool in request.tools]
    if len(set(names)) < len(names):
        raise contradiction("tools", "'tools' names a function twice.")
    if choice.is_forced and not names:
        raise contradiction("tool_choice", "'tool_choice' asks for a call, but there are no 'tools'.")
    if choice.mode == "named" and choice.name not in names:
        raise contradiction(
            "tool_choice",
            f"'tool_choice' names '{(choice.name or '')[:80]}', which is not among the 'tools'.",
        )
    structured = request.response_format is not None and request.response_format.type != "text"
    if structured and request.structured_outputs is not None:
        raise contradiction("structured_outputs", "'structured_outputs' contradicts 'response_format'.")
    if choice.is_forced and (structured or request.structured_outputs is not None):
        raise contradiction("tool_choice", f"'tool_choice' contradicts '{request.structure_param}'.")
    if choice.mode != "none" and request.continue_final_message:
        raise contradiction(
            "continue_final_message", "'continue_final_message' is not possible with 'tools'."
        )
