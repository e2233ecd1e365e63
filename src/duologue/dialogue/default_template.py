"""The chat template of models that have none: base models, which go on with a text and know no turns.

It is a text that such a model goes on with as a dialogue: each message under its speaker's name. A system message that comes
first stands above it all. Names are at the beginning of a line and replies begin on a line of their own, so tokenizers cut
the prompt at the same places on every turn. A reply ends where the model writes the next speaker's name.
"""

from __future__ import annotations

DEFAULT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if not (loop.first and message.role in ('system', 'developer')) -%}"
    "{{ message.role | capitalize ~ ':\\n' }}"
    "{%- endif -%}"
    "{{ message.content | trim }}"
    "{%- if add_generation_prompt or not loop.last -%}"
    "{{ '\\n\\n' }}"
    "{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}"
    "{{ 'Assistant:\\n' }}"
    "{%- endif -%}"
)
DEFAULT_STOPS = tuple(
    f"{lines}{name}:" for name in ("User", "Assistant", "System") for lines in ("\n", "\n\n")
)
DEFAULT_WARNING = (
    "the model {name} has no chat template; its dialogues are written as plain text with a line 'User:' or 'Assistant:' "
    "above each message, and a reply ends at the next such line. Models that are not trained to chat may ramble"
)
