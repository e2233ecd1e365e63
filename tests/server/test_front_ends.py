"""The shapes of requests that two front ends send, by their sources.

SillyTavern 1.13: `src/endpoints/backends/chat-completions.js` (sources "openai" and "custom") and, for text completions of the
type vLLM, `VLLM_KEYS` in `src/constants.js`. Open WebUI 0.6: `backend/open_webui/utils/payload.py`.
"""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.server.conftest import RunningServer

_MESSAGES = [
    {"role": "system", "content": "You are the keeper of a lighthouse."},
    {"role": "system", "content": "[Start a new chat]"},
    {"role": "assistant", "content": "The lamp is lit."},
    {"role": "user", "content": "Good evening!", "name": "Anna"},
    {"role": "system", "content": "Stay in character."},
]
_SILLYTAVERN_CHAT: dict[str, Any] = {
    "messages": _MESSAGES,
    "temperature": 1,
    "max_tokens": 8,
    "stream": False,
    "presence_penalty": 0.2,
    "frequency_penalty": 0.1,
    "top_p": 1,
    "top_k": 40,
    "stop": ["\nAnna:"],
    "logit_bias": {"5": -1},
    "seed": 7,
    "n": 2,
    "logprobs": True,
    "top_logprobs": 5,
    "user": "0a1b",
    "response_format": {
        "type": "json_schema",
        "json_schema": {"name": "n", "strict": True, "schema": {"type": "boolean"}},
    },
}
_SILLYTAVERN_TEXT: dict[str, Any] = {
    "prompt": "<|im_start|>user\nGood evening!<|im_end|>\n<|im_start|>assistant\n",
    "best_of": 1,
    "echo": False,
    "frequency_penalty": 0,
    "logit_bias": {},
    "logprobs": 5,
    "max_tokens": 8,
    "n": 1,
    "presence_penalty": 0,
    "seed": -1,
    "stop": ["\nAnna:", "<|im_end|>"],
    "stream": True,
    "temperature": 0.7,
    "top_p": 0.9,
    "use_beam_search": False,
    "top_k": -1,
    "min_p": 0.05,
    "repetition_penalty": 1.1,
    "length_penalty": 1,
    "early_stopping": False,
    "stop_token_ids": [],
    "ignore_eos": False,
    "min_tokens": 0,
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
    "include_stop_str_in_output": False,
}
_OPEN_WEBUI: dict[str, Any] = {
    "messages": [*_MESSAGES[:1], {"role": "user", "content": [{"type": "text", "text": "Good evening!"}]}],
    "stream": True,
    "stream_options": {"include_usage": True},
    "temperature": 0.8,
    "top_p": 0.9,
    "min_p": 0.0,
    "max_tokens": 8,
    "frequency_penalty": 1.1,
    "presence_penalty": 0.0,
    "seed": 3,
    "stop": ["END"],
    "logit_bias": {"100": 5},
    "response_format": {"type": "text"},
    "metadata": {"chat_id": "x"},
}


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("chat/completions", _SILLYTAVERN_CHAT),
        ("chat/completions", {**_SILLYTAVERN_CHAT, "stream": True, "response_format": None}),
        ("completions", _SILLYTAVERN_TEXT),
        ("chat/completions", _OPEN_WEBUI),
        ("chat/completions", {"messages": _MESSAGES[3:4], "stream": False, "max_completion_tokens": 8}),
    ],
    ids=["sillytavern", "sillytavern-stream", "sillytavern-text", "open-webui", "open-webui-title"],
)
def test_a_front_end_s_request_is_answered(served: RunningServer, path: str, fields: dict[str, Any]) -> None:
    body = {"model": served.engine.model_name, **fields}
    headers = {"authorization": "Bearer none"}
    response = httpx.post(f"{served.url}v1/{path}", json=body, headers=headers, timeout=60)
    assert response.status_code == 200, response.text
    if fields["stream"]:
        assert response.text.endswith("data: [DONE]\n\n")
        assert "error" not in response.text
    else:
        assert len(response.json()["choices"]) == fields.get("n", 1)
