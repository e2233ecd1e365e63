"""The official Python client over real HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import openai
import pytest

from tests.server.conftest import RunningServer, unique


@pytest.fixture(scope="module")
def client(served: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=served.url + "v1", api_key="none", max_retries=0) as client:
        yield client


def test_a_whole_reply(served: RunningServer, client: openai.OpenAI) -> None:
    completion = client.chat.completions.create(
        model=served.engine.model_name,
        messages=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
        max_completion_tokens=8,
        seed=1,
        extra_body={"ignore_eos": True, "top_k": 20, "cache_salt": unique()},
    )
    assert completion.choices[0].finish_reason == "length"
    assert completion.choices[0].message.content is not None
    assert completion.usage is not None
    assert completion.usage.completion_tokens == 8
    assert completion.usage.prompt_tokens_details is not None
    assert completion.usage.prompt_tokens_details.cached_tokens == 0


def test_a_streamed_reply_and_a_second_turn(served: RunningServer, client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model=served.engine.model_name,
        messages=[{"role": "user", "content": "Hi"}],
        max_tokens=8,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    chunks = list(stream)
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 8
    reply = client.chat.completions.create(
        model=served.engine.model_name, messages=[{"role": "user", "content": "Hi"}], max_tokens=3
    )
    second = client.chat.completions.create(
        model=served.engine.model_name,
        messages=[
            {"role": "user", "content": "Hi"},
            reply.choices[0].message,  # type: ignore[list-item]
            {"role": "user", "content": "More"},
        ],
        max_tokens=3,
    )
    assert second.usage is not None
    assert reply.usage is not None
    assert second.usage.prompt_tokens > reply.usage.prompt_tokens


def test_the_async_client_streams_many_at_once(served: RunningServer) -> None:
    async def one(client: openai.AsyncOpenAI, index: int) -> int:
        stream = await client.chat.completions.create(
            model=served.engine.model_name,
            messages=[{"role": "user", "content": f"Count to {index}"}],
            max_tokens=10 + index,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )
        usage = None
        async for chunk in stream:
            usage = chunk.usage or usage
        assert usage is not None
        return usage.completion_tokens

    async def all_of_them() -> list[int]:
        async with openai.AsyncOpenAI(base_url=served.url + "v1", api_key="none") as client:
            return await asyncio.gather(*(one(client, index) for index in range(16)))

    assert asyncio.run(all_of_them()) == [10 + index for index in range(16)]


def test_models(served: RunningServer, client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [served.engine.model_name]
    assert client.models.retrieve(served.engine.model_name).owned_by == "duologue"


def test_errors_have_the_client_s_classes(served: RunningServer, client: openai.OpenAI) -> None:
    name = served.engine.model_name
    with pytest.raises(openai.NotFoundError, match=name) as unknown:
        client.chat.completions.create(model="gpt-4", messages=[{"role": "user", "content": "Hi"}])
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as hot:
        client.chat.completions.create(
            model=name, messages=[{"role": "user", "content": "Hi"}], temperature=9
        )
    assert (hot.value.param, hot.value.type) == ("temperature", "invalid_request_error")
    with pytest.raises(openai.BadRequestError) as many:
        client.chat.completions.create(model=name, messages=[{"role": "user", "content": "Hi"}], n=200)
    assert (many.value.param, many.value.code) == ("n", "above_max_value")
    with pytest.raises(openai.BadRequestError) as long:
        client.chat.completions.create(
            model=name, messages=[{"role": "user", "content": "word " * served.engine.context_tokens}]
        )
    assert long.value.code == "context_length_exceeded"
