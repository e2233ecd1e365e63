"""Clients of other projects over real HTTP."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from tests.server.conftest import RunningServer

pytestmark = pytest.mark.clients

_HERE = Path(__file__).parent
_TIME = {"type": "function", "function": {"name": "time", "parameters": {"type": "object", "properties": {}}}}


def run(*command: str, **environment: str) -> str:
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_openai_for_node(tooled: RunningServer) -> None:
    script = str(_HERE / "node_client.mjs")
    modules = str(Path(os.environ["NODE_PATH"]).resolve())
    said: dict[str, Any] = json.loads(
        run("node", script, tooled.url + "v1", tooled.engine.model_name, NODE_PATH=modules)
    )
    assert len(said["whole"]) == 2
    assert said["text"] == said["whole"][0]
    assert said["usage"]["completion_tokens"] > 0
    assert said["refused"] == {"name": "BadRequestError", "status": 400, "param": "temperature"}
    assert said["models"] == [tooled.engine.model_name]
    assert said["call"] == {"name": "time", "arguments": "{}"}
    assert isinstance(said["continued"], str)


def test_openai_for_python_calls_and_structures(tooled: RunningServer) -> None:
    import openai
    from pydantic import BaseModel

    class Day(BaseModel):
        sunny: bool

    name = tooled.engine.model_name
    with openai.OpenAI(base_url=tooled.url + "v1", api_key="none", max_retries=0) as client:
        parsed = client.chat.completions.parse(
            model=name, messages=[{"role": "user", "content": "Hi"}], response_format=Day, max_tokens=200
        )
        assert isinstance(parsed.choices[0].message.parsed, Day)
        with client.chat.completions.stream(
            model=name,
            messages=[{"role": "user", "content": "Hi"}],
            tools=[_TIME],  # type: ignore[list-item]
            tool_choice="required",
            parallel_tool_calls=False,
            max_tokens=200,
        ) as stream:
            final = stream.get_final_completion()
        calls = final.choices[0].message.tool_calls
        assert calls is not None
        assert (calls[0].function.name, calls[0].function.arguments) == ("time", "{}")
        assert client.completions.create(model=name, prompt="a", max_tokens=2, logprobs=1).choices[0].logprobs


@pytest.mark.filterwarnings("ignore")
def test_litellm(tooled: RunningServer) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import litellm

        name = tooled.engine.model_name
        common: dict[str, Any] = {
            "model": f"openai/{name}",
            "api_base": tooled.url + "v1",
            "api_key": "none",
            "messages": [{"role": "user", "content": "Hi"}],
            "max_tokens": 5,
            "seed": 2,
        }
        whole = litellm.completion(**common)
        chunks = list(litellm.completion(**common, stream=True))
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        assert text == (whole.choices[0].message.content or "")
        assert whole.usage.completion_tokens <= 5
        with pytest.raises(litellm.BadRequestError, match="temperature"):
            litellm.completion(**{**common, "temperature": 9})
        with pytest.raises(litellm.NotFoundError):
            litellm.completion(**{**common, "model": "openai/other"})


@pytest.mark.filterwarnings("ignore")
def test_langchain(tooled: RunningServer) -> None:
    from langchain_openai import ChatOpenAI

    def time() -> str:
        """What time it is."""
        return "noon"

    model = ChatOpenAI(
        base_url=tooled.url + "v1", api_key="none", model=tooled.engine.model_name, max_tokens=200, seed=1
    )
    said = model.invoke("Hello")
    assert isinstance(said.content, str)
    streamed = "".join(str(chunk.content) for chunk in model.stream("Hello"))
    assert streamed == said.content
    called = model.bind_tools([time], tool_choice="required", parallel_tool_calls=False).invoke("Hello")
    assert called.tool_calls[0]["name"] == "time"
    schema = {
        "title": "day",
        "description": "a day",
        "type": "object",
        "properties": {"sunny": {"type": "boolean"}},
        "required": ["sunny"],
        "additionalProperties": False,
    }
    shaped = model.with_structured_output(schema, method="json_schema").invoke("Hello")
    assert set(shaped) == {"sunny"}


def test_the_llm_command(tooled: RunningServer, tmp_path: Path) -> None:
    name = tooled.engine.model_name
    (tmp_path / "extra-openai-models.yaml").write_text(
        f"- model_id: here\n  model_name: {name}\n  api_base: {tooled.url}v1\n"
    )
    llm = str(Path(sys.executable).with_name("llm"))
    options = ("-m", "here", "-o", "max_tokens", "6", "-o", "seed", "1", "Hello")
    environment = {"LLM_USER_PATH": str(tmp_path), "OPENAI_API_KEY": "none"}
    streamed = run(llm, *options, **environment)
    assert run(llm, "--no-stream", *options, **environment) == streamed
