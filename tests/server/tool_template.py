"""A chat template that shows functions as the models of the Hermes and Qwen families are trained to see them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from duologue import Engine
from duologue.models.random_model import write_random_llama
from tests.server.conftest import RunningServer, running_server

HERMES = (
    "{%- if tools %}<|im_start|>system\n"
    "{% if messages[0].role == 'system' %}{{ messages[0].content }}\n\n{% endif %}"
    "These functions may be called:\n<tools>"
    "{% for tool in tools %}\n{{ tool | tojson }}{% endfor %}\n</tools>\n"
    'A call is written as <tool_call>\n{"name": ..., "arguments": ...}\n</tool_call><|im_end|>\n'
    "{% endif %}"
    "{% for message in messages %}"
    "{% if message.role == 'tool' %}<|im_start|>user\n<tool_response>\n{{ message.content }}\n</tool_response>"
    "{% elif message.role == 'system' and tools %}{% continue %}"
    "{% else %}<|im_start|>{{ message.role }}\n{{ message.content }}{% endif %}"
    "{% for call in message.tool_calls or [] %}"
    "{% if not loop.first or message.content %}\n{% endif %}<tool_call>\n"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}\n</tool_call>'
    "{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def give_template(folder: Path, template: str) -> Path:
    """Replaces the chat template of a Hugging Face folder; returns the folder."""
    file = folder / "tokenizer_config.json"
    config = json.loads(file.read_text())
    config["chat_template"] = template
    file.write_text(json.dumps(config))
    return folder


@contextmanager
def serve_tools(folder: Path) -> Iterator[RunningServer]:
    """A server for a random model that is written to `folder` and knows functions by HERMES."""
    give_template(write_random_llama(folder, kv_heads=2, seed=3), HERMES)
    with (
        Engine.load(folder, kv_memory_bytes=8 << 20, threads=1) as engine,
        running_server(engine) as server,
    ):
        yield server
