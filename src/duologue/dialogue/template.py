"""Chat template: messages to prompt text, and to token ids that no user text can forge.

The rendered prompt is one string, in which `<|im_start|>` written by the template and `<|im_start|>` typed by
a user look the same. So strings that come from messages are marked before rendering: control tokens are
looked for in the marked prompt, where a spelling that holds a user's character is interrupted by a mark, and
only then are the marks taken out and the text between encoded as plain text (`marked_chat`). A template may
look into content, so there are two markings:

- the light one leaves nearly all text as it is, and interrupts the control tokens that are spelled in it;
- the dense one marks around every character. Whatever the template cuts out, deletes or joins, no control
  token can come of user text; but a template that looks for words in content does not find them.

Where both lead to the same control tokens, the light prompt is encoded. Where they differ, user text has
reached a control token through the template's own handling, and the dense one is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jinja2 import TemplateError as JinjaError
from jinja2 import TemplateSyntaxError

from duologue.dialogue.default_template import DEFAULT_STOPS, DEFAULT_TEMPLATE, default_messages
from duologue.dialogue.marked_chat import MarkedChat
from duologue.dialogue.messages import MessageLike, template_messages
from duologue.dialogue.sandbox import bounded_range, compile_template
from duologue.dialogue.tokenizer import Tokenizer
from duologue.errors import TemplateError


class ChatTemplate:
    """A compiled chat template, immutable and safe to use from several threads.

    `bos` and `eos` are the spellings that the template may refer to as `bos_token` and `eos_token`. A reply ends at the first
    of `stops`, which only the default template has; `is_default` tells that one.
    """

    def __init__(
        self,
        source: str,
        bos: str = "",
        eos: str = "",
        *,
        strftime_now: Callable[[str], str] | None = None,
    ) -> None:
        """`strftime_now` stands in for the clock that templates may read. Raises `TemplateError`, naming the
        line, if `source` does not compile."""
        self.source = source
        self.is_default = source is DEFAULT_TEMPLATE
        self.stops: tuple[str, ...] = DEFAULT_STOPS if self.is_default else ()
        self.bos = bos
        self.eos = eos
        self._variables: dict[str, Any] = {} if strftime_now is None else {"strftime_now": strftime_now}
        try:
            self._template = compile_template(source)
        except TemplateSyntaxError as error:
            raise TemplateError(
                f"the model's chat template does not compile, line {error.lineno}: {error.message}"
            ) from error

    @classmethod
    def for_tokenizer(cls, source: str | None, tokenizer: Tokenizer) -> ChatTemplate:
        """A template whose `bos_token` and `eos_token` are the tokenizer's; the default one if the model has none."""
        bos, eos = (
            "" if token_id is None else tokenizer.decode([token_id], skip_special=False)
            for token_id in (tokenizer.bos_id, tokenizer.eos_id)
        )
        return cls(source or DEFAULT_TEMPLATE, bos=bos, eos=eos)

    def render(
        self,
        messages: Sequence[MessageLike],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """The prompt as text. Raises `InvalidRequestError` for a malformed message and `TemplateError`, with
        the template's own words, if the template raises."""
        return self._render(self._plain(messages), tools, add_generation_prompt)

    def encode_chat(
        self,
        tokenizer: Tokenizer,
        messages: Sequence[MessageLike],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[int]:
        """The prompt as token ids. Control tokens come from the template alone: those spelled in messages are
        encoded as text. A begin-of-text token comes first if the model expects one and the template wrote
        none.

        Raises as `render` does.
        """
        chat = self.marked(tokenizer, messages, add_generation_prompt, tools)
        ids = tokenizer.encode_pieces(chat.pieces)
        if tokenizer.adds_bos and tokenizer.bos_id is not None and ids[:1] != [tokenizer.bos_id]:
            ids.insert(0, tokenizer.bos_id)
        return ids

    def marked(
        self,
        tokenizer: Tokenizer,
        messages: Sequence[MessageLike],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> MarkedChat:
        """The prompt cut at its control tokens, before it is encoded. Raises as `render` does."""

        def render(plain: Any, plain_tools: Any) -> str:
            return self._render(plain, plain_tools, add_generation_prompt)

        plain = self._plain(messages)
        return MarkedChat(tokenizer, render, plain, tools, foreign=(self.source, self.bos, self.eos))

    def _plain(self, messages: Sequence[MessageLike]) -> list[dict[str, Any]]:
        plain = template_messages(messages)
        return default_messages(plain) if self.is_default else plain

    def _render(self, messages: Any, tools: Any, add_generation_prompt: bool) -> str:
        try:
            text: str = self._template.render(
                messages=messages,
                tools=tools or None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                bos_token=self.bos,
                eos_token=self.eos,
                range=bounded_range(),
                **self._variables,
            )
        except TemplateError:
            raise
        except JinjaError as error:
            raise TemplateError(f"the chat template fails: {error.message}") from error
        except Exception as error:  # a template can raise anything that an expression can
            raise TemplateError(f"the chat template fails: {type(error).__name__}: {error}") from error
        return text
