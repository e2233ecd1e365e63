"""The chat template of models that have none: base models, which go on with a text and know no turns.

It is a text that such a model goes on with as a dialogue: each message on a line after its speaker's name. A system message
that comes first stands above it all. A reply ends where the model writes the next speaker's name.

The prompt ends with the colon: the space after it is a part of the first word's token, and models answer worse, or repeat the
question, after a space or a line end of the template's. So replies begin with a space, which `default_messages` gives back to
those that clients have trimmed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

DEFAULT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if loop.first and message.role in ('system', 'developer') -%}"
    "{{ message.content | trim ~ '\\n' }}"
    "{%- elif message.role == 'assistant' -%}"
    "{{ 'Assistant:' ~ message.content }}"
    "{%- else -%}"
    "{{ message.role | capitalize ~ ': ' ~ message.content | trim }}"
    "{%- endif -%}"
    "{%- if add_generation_prompt or not loop.last -%}"
    "{{ '\\n' }}"
    "{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}"
    "{{ 'Assistant:' }}"
    "{%- endif -%}"
)
DEFAULT_STOPS = tuple(
    f"{lines}{name}:" for name in ("User", "Assistant", "System") for lines in ("\n", "\n\n")
)
DEFAULT_WARNING = (
    "the model {name} has no chat template; its dialogues are written as plain text with 'User:' or 'Assistant:' before "
    "each message, and a reply ends at the next such line. Models that are not trained to chat may ramble"
)


def default_messages(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages as `DEFAULT_TEMPLATE` expects them: every reply begins with white space."""
    return [
        {**message, "content": f" {message['content']}"}
        if message["role"] == "assistant" and not message["content"][:1].isspace()
        else message
        for message in messages
    ]
