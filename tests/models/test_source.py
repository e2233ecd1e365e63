from __future__ import annotations

from pathlib import Path

import pytest

from duologue.errors import ModelLoadError
from duologue.models.kv_source import kv_model
from duologue.models.source import resolve
from duologue.models.store import CACHE_VARIABLE


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")


def test_a_gguf_file_is_named_after_itself(tmp_path: Path) -> None:
    path = tmp_path / "some-model.Q4_1.gguf"
    path.write_bytes(b"GGUF")
    source = resolve(path)
    assert (source.name, source.path) == ("some-model.Q4_1", path)
    first = source.digest()
    path.write_bytes(b"GGUF.")
    assert source.digest() != first


def test_a_folder_is_named_after_itself(tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve(str(tiny_model_dir)).name == "tiny-gqa"
    monkeypatch.chdir(tiny_model_dir)
    assert resolve(".").name == "tiny-gqa"


def test_every_file_that_matters_is_in_a_folders_digest(tmp_path: Path) -> None:
    digests = set()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (tmp_path / name).write_text("{}")
        digests.add(resolve(tmp_path).digest())
    (tmp_path / "README.md").write_text("no part of the model")
    digests.add(resolve(tmp_path).digest())
    assert len(digests) == 4


def test_a_folder_without_a_config_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"folder without a config\.json.*give that of a \.gguf file"):
        resolve(tmp_path)
    (tmp_path / "m.gguf").touch()
    with pytest.raises(ModelLoadError, match=r"give the path of m\.gguf in it"):
        resolve(tmp_path)


@pytest.mark.parametrize("name", ["smollm2-135", "SmolLM2", "smolm2-135m"])
def test_a_near_miss_is_answered_with_the_alias(name: str) -> None:
    with pytest.raises(ModelLoadError, match=rf"unknown model '{name}': did you mean smollm2-135m\?"):
        resolve(name)


def test_an_unknown_name_is_answered_with_what_there_is() -> None:
    with pytest.raises(
        ModelLoadError, match=r"known names are smollm2-135m, gemma3-270m; or give the path"
    ) as raised:
        resolve("gpt-17")
    assert "did you mean" not in str(raised.value)


@pytest.mark.parametrize("path", ["./smollm2-135m", "models/x", "x.gguf"])
def test_a_path_that_is_not_there(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelLoadError, match="there is no file or folder"):
        resolve(path)


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b", "~nobody-of-that-name/model", "x" * 5000 + ".json"])
def test_a_name_that_no_file_can_have_is_unknown(name: str) -> None:
    with pytest.raises(ModelLoadError, match=r"unknown model|no file or folder"):
        resolve(name)
    with pytest.raises(ModelLoadError, match=r"unknown model|no file or folder"):
        kv_model(name)
