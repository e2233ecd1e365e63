"""The OpenAPI document says what the server does."""

from __future__ import annotations

from typing import Any

import httpx

from duologue.api.chat import ChatCompletionRequest
from duologue.api.structure import OLDER_SPELLINGS
from duologue.api.unsupported import CHAT_FIELDS, HARMLESS
from tests.server.conftest import RunningServer


def test_every_route_and_field_is_described(served: RunningServer) -> None:
    document: dict[str, Any] = httpx.get(served.url + "openapi.json").json()
    described = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    for method, path in described:
        concrete = path.replace("{model}", served.engine.model_name).replace("{key}", "k")
        assert httpx.request(method, served.url + concrete[1:]).status_code not in (404, 405), path
    assert len(described) == 13
    schemas = document["components"]["schemas"]
    fields = set(schemas["ChatCompletionRequest"]["properties"])
    assert fields == set(ChatCompletionRequest.model_fields) | HARMLESS | set(CHAT_FIELDS) | set(
        OLDER_SPELLINGS
    )
    assert schemas["ChatCompletionRequest"]["additionalProperties"] is False
    assert schemas["ChatCompletionRequest"]["properties"]["model"]["enum"] == [served.engine.model_name]


def test_every_reference_leads_somewhere(served: RunningServer) -> None:
    document = httpx.get(served.url + "openapi.json").json()

    def check(value: Any) -> int:
        if isinstance(value, list):
            return sum(map(check, value))
        if not isinstance(value, dict):
            return 0
        if "$ref" in value:
            assert value["$ref"].removeprefix("#/components/schemas/") in document["components"]["schemas"]
            return 1
        return sum(map(check, value.values()))

    assert check(document) > 40


def test_what_is_accepted_is_described(served: RunningServer) -> None:
    schemas = httpx.get(served.url + "openapi.json").json()["components"]["schemas"]
    reply = served.post(max_tokens=2).json()["choices"][0]["message"]
    message = schemas["ChatMessage"]
    assert set(reply) <= set(message["properties"])
    assert message["additionalProperties"] is False
    answer = served.post(messages=[reply, {"role": "user", "content": "On"}], max_tokens=1)
    assert answer.status_code == 200, answer.text
    assert "best_of" in schemas["TextCompletionRequest"]["properties"]
    guided = schemas["ChatCompletionRequest"]["properties"]["guided_regex"]
    assert guided == schemas["StructuredOutputs"]["properties"]["regex"]
