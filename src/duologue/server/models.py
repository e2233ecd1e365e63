"""The models of one server, each with its engine and with what is kept of its dialogues."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from duologue.api.errors import ModelNotFoundError
from duologue.api.replies import model_object
from duologue.dialogue.tool_format import ToolFormat, find_tool_format
from duologue.engine.request import PromptMarks
from duologue.errors import InvalidRequestError
from duologue.server.prompts import Prompts
from duologue.server.tenant_cache import TenantCache

if TYPE_CHECKING:
    from duologue.cache.miss import MissHints
    from duologue.dialogue.encoded_dialogue import EncodedDialogue
    from duologue.engine.engine import Engine


class ServedModel:
    """One engine under the name that clients know."""

    def __init__(self, name: str, engine: Engine) -> None:
        self.name = name
        self.engine = engine
        self.prompts = Prompts(engine)
        self.cache = TenantCache(engine, self.prompts)
        self.created_s = int(time.time())
        self._has_windows = any(layer.window for layer in engine.spec.layers)

    def as_dict(self) -> dict[str, Any]:
        """Its entry in `/v1/models`."""
        return model_object(self.name, self.created_s, self.engine.context_tokens)

    def marks(self, prompt: EncodedDialogue, hints: MissHints) -> PromptMarks:
        """What the engine's cache should know of a prompt's places."""
        if not self._has_windows:  # the places matter only to windows of local KV
            return PromptMarks(hints=hints)
        persona_end = prompt.persona_end
        return PromptMarks(
            turns=prompt.turn_boundaries or (),
            shared=() if persona_end is None else (persona_end,),
            hints=hints,
        )

    @property
    def tools(self) -> ToolFormat:
        """How its template writes calls. Raises `InvalidRequestError` when that is not known."""
        if self._tools is None:
            raise InvalidRequestError(
                f"The chat template of the model '{self.name}' shows no tools, or in a way that is not known here; "
                "leave out 'tools' and messages with tool calls.",
                param="tools",
                code="unsupported_parameter",
            )
        return self._tools

    def require_tools(self) -> None:
        """Raises `InvalidRequestError` when its template shows no tools, or not in a way that is known."""
        _ = self.tools

    @cached_property
    def _tools(self) -> ToolFormat | None:
        return find_tool_format(self.engine.template)

    @cached_property
    def call_ids(self) -> frozenset[int]:
        """Control tokens that are marks around calls: replies that may hold calls show them to their parser."""
        return self.tools.control_ids(self.engine.tokenizer)


class ServedModels(Mapping[str, ServedModel]):
    """All models by name, in the order in which they were given."""

    def __init__(self, engines: Mapping[str, Engine]) -> None:
        self._models = {name: ServedModel(name, engine) for name, engine in engines.items()}

    def __getitem__(self, name: str) -> ServedModel:
        """Raises `ModelNotFoundError`."""
        model = self._models.get(name)
        if model is None:
            raise ModelNotFoundError(name, *self._models)
        return model

    def __iter__(self) -> Iterator[str]:
        return iter(self._models)

    def __len__(self) -> int:
        return len(self._models)

    def named(self, name: str | None) -> ServedModel:
        """The model that a request names; without a name the only one. Raises `ModelNotFoundError` or `InvalidRequestError`."""
        if name is not None:
            return self[name]
        if len(self._models) > 1:
            raise InvalidRequestError(
                f"Missing required parameter: 'model'; this server has {', '.join(map(repr, self._models))}.",
                param="model",
                code="missing_required_parameter",
            )
        return next(iter(self._models.values()))
