"""Models by their id on a hub: the real client against a server on this machine."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from duologue.errors import ModelLoadError, UnsupportedModelError
from duologue.models.hf_checkpoint import read_hf_folder
from duologue.models.hub import fetch_from_hub, record_path, records
from duologue.models.hub_id import HubId, model_files, parse_hub_id
from duologue.models.source import resolve
from tests.models.hub_case import Hub, Repository
from tests.models.shards import cut_into_shards

TINY = HubId("tiny-org/tiny")


@pytest.fixture
def hub(hub: Hub) -> Hub:
    """With more in `tiny-org/tiny` than is needed."""
    folder = hub.repositories[TINY.repo].folder
    (folder / "README.md").write_text("not needed")
    (folder / "pytorch_model.bin").write_bytes(b"not needed")
    return hub


def test_only_what_is_needed_is_fetched_and_only_once(hub: Hub) -> None:
    path = fetch_from_hub(TINY)
    assert len(read_hf_folder(path).spec.layers) == 2
    assert sorted(hub.sent()) == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    hub.requests.clear()
    assert fetch_from_hub(TINY) == path
    assert hub.requests == []
    assert list(records()) == [(TINY, path)]


def test_a_source_is_named_after_its_id_and_a_path_goes_first(
    hub: Hub, tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert resolve(TINY.repo).name == TINY.repo
    assert resolve(f"{TINY.repo}@main").name == TINY.repo
    monkeypatch.chdir(tmp_path)
    shutil.copytree(tiny_model_dir, tmp_path / TINY.repo)
    assert resolve(TINY.repo).path == Path(TINY.repo)


def test_shards_are_those_of_the_index(hub: Hub) -> None:
    folder = hub.repositories[TINY.repo].folder
    names = cut_into_shards(folder)
    (folder / "model-extra.safetensors").write_bytes(b"not needed")
    path = fetch_from_hub(TINY)
    assert [name for name in hub.sent() if name.startswith("model")] == [
        "model.safetensors.index.json",
        *names,
    ]
    assert len(dict(read_hf_folder(path).weights)) > 10


def test_a_download_that_was_cut_off_is_resumed(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = hub.repositories[TINY.repo].folder
    size = (folder / "model.safetensors").stat().st_size
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 1 << 14)
    hub.cut["model.safetensors"] = [size // 2]  # and the client goes on at once, where it was
    path = fetch_from_hub(TINY)
    assert (path / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    ranges = [r for method, name, r in hub.requests if method == "GET" and name.endswith("model.safetensors")]
    assert ranges[0] in (None, "bytes=0-")
    assert size // 4 < int(re.findall(r"\d+", ranges[-1] or "")[0]) <= size // 2


def test_a_server_that_fails_is_one_error_and_what_arrived_is_kept(hub: Hub) -> None:
    hub.failing = True
    with pytest.raises(ModelLoadError, match=r"tiny-org/tiny cannot be fetched from .*HTTP status 503"):
        fetch_from_hub(TINY)
    hub.failing = False
    fetch_from_hub(TINY)


def test_what_is_not_what_the_hub_says_is_removed(hub: Hub) -> None:
    hub.damaged.add("model.safetensors")
    with pytest.raises(ModelLoadError, match=r"model\.safetensors of tiny-org/tiny arrived damaged"):
        fetch_from_hub(TINY)
    assert not record_path(TINY).exists()
    hub.damaged.clear()
    assert dict(read_hf_folder(fetch_from_hub(TINY)).weights)


def test_a_newer_commit_is_seen_only_when_asked_for(hub: Hub) -> None:
    old = fetch_from_hub(TINY)
    repository = hub.repositories[TINY.repo]
    repository.commit = "2" * 40
    (repository.folder / "chat_template.jinja").write_text("new")
    assert fetch_from_hub(TINY) == old
    hub.requests.clear()
    new = fetch_from_hub(TINY, refresh=True)
    assert new != old
    assert hub.sent() == ["chat_template.jinja"]  # all else is the same
    assert read_hf_folder(new).chat_template == "new"
    assert fetch_from_hub(HubId(TINY.repo, "2" * 40)) == new


def test_what_was_removed_from_the_cache_is_fetched_again(hub: Hub) -> None:
    path = fetch_from_hub(TINY)
    (path / "tokenizer.json").resolve().unlink()
    hub.requests.clear()
    fetch_from_hub(TINY)
    assert hub.sent() == ["tokenizer.json"]


def test_a_private_or_gated_model_says_what_to_do(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = hub.repositories[TINY.repo]
    repository.token, repository.gated = "hf_secret", True
    with pytest.raises(
        ModelLoadError, match=rf"is gated: accept its terms at {hub.url}/tiny-org/tiny .*HF_TOKEN"
    ):
        fetch_from_hub(TINY)
    repository.gated = False
    with pytest.raises(ModelLoadError, match=r"or it is private: .*HF_TOKEN"):
        fetch_from_hub(TINY)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    fetch_from_hub(TINY)


def test_what_does_not_exist_is_named(hub: Hub) -> None:
    with pytest.raises(
        ModelLoadError, match=r"no file or folder tiny-org/none, and no such model at http://127"
    ):
        resolve("tiny-org/none")
    with pytest.raises(ModelLoadError, match=r"no branch, tag or commit 'v9'"):
        resolve("tiny-org/tiny@v9")
    assert resolve("tiny-org/tiny@main").path == fetch_from_hub(TINY)


def test_without_network(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(
        ModelLoadError, match=r"http://127\.0\.0\.1:9 .*connection failed .*check the network"
    ):
        fetch_from_hub(TINY)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelLoadError, match=r"HF_HUB_OFFLINE forbids"):
        fetch_from_hub(TINY)
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    path = fetch_from_hub(TINY)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert fetch_from_hub(TINY) == path


def test_a_gguf_file_of_several(hub: Hub, tmp_path: Path) -> None:
    folder = tmp_path / "ggufs"
    folder.mkdir()
    for kind in ("Q4_K_M", "Q8_0", "F16"):
        (folder / f"tiny-{kind}.gguf").write_bytes(kind.encode())
    hub.repositories["tiny-org/tiny-gguf"] = Repository(folder)
    source = resolve("tiny-org/tiny-gguf")
    assert source.path.name == "tiny-Q8_0.gguf"
    assert source.path.read_bytes() == b"Q8_0"
    assert resolve("tiny-org/tiny-gguf:q4_k_m").path.read_bytes() == b"Q4_K_M"
    assert resolve("tiny-org/tiny-gguf:tiny-F16.gguf").name == "tiny-org/tiny-gguf:tiny-F16.gguf"
    assert hub.sent() == ["tiny-Q8_0.gguf", "tiny-Q4_K_M.gguf", "tiny-F16.gguf"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("org/name", HubId("org/name")),
        ("org/name@v1.0", HubId("org/name", "v1.0")),
        ("org/name@refs/pr/3:Q8_0", HubId("org/name", "refs/pr/3", "Q8_0")),
        ("org/name:sub/x.gguf", HubId("org/name", choice="sub/x.gguf")),
        ("name", None),
        ("a/b/c", None),
        ("../name", None),
        ("org/..", None),
        ("/org/name", None),
        ("./name", None),
        ("org/x.gguf", None),
        ("org/name@", None),
    ],
)
def test_ids_are_told_from_paths(text: str, expected: HubId | None) -> None:
    assert parse_hub_id(text) == expected
    if expected is not None:
        assert str(expected) == text


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["config.json", "model.safetensors", "x-Q8_0.gguf"], ["config.json", "model.safetensors"]),
        (["config.json", "x.gguf"], ["x.gguf"]),
        (["x-f16.gguf", "x-bf16.gguf", "x-q4_0.gguf"], ["x-bf16.gguf"]),
        (["mmproj-x-Q8_0.gguf", "x-Q4_0.gguf", "../x-Q8_0.gguf", "/x-Q8_0.gguf"], ["x-Q4_0.gguf"]),
        (["x-Q8_0-00001-of-00002.gguf", "x-Q8_0-00002-of-00002.gguf", "x-Q4_0.gguf"], ["x-Q4_0.gguf"]),
    ],
)
def test_the_choice_of_files(names: list[str], expected: list[str]) -> None:
    assert model_files(HubId("o/n"), names) == expected


@pytest.mark.parametrize(
    ("names", "choice", "error", "named"),
    [
        (["config.json", "pytorch_model.bin"], None, UnsupportedModelError, r"pickle \(pytorch_model\.bin\)"),
        (["adapter_model.safetensors", "adapter_config.json"], None, UnsupportedModelError, "an adapter"),
        (["README.md"], None, ModelLoadError, "no model to run"),
        (["x-IQ1_S.gguf", "x-IQ2_XXS.gguf"], None, ModelLoadError, r"choose, for example o/n:x-IQ1_S\.gguf"),
        (["x-Q8_0.gguf", "y-Q8_0.gguf"], "Q8_0", ModelLoadError, r"several of .*x-Q8_0\.gguf, y-Q8_0\.gguf"),
        (["x-Q8_0.gguf"], "Q4_0", ModelLoadError, r"none of .*: x-Q8_0\.gguf"),
        (["model.safetensors"], "Q4_0", ModelLoadError, "there are none"),
        (["x-00001-of-00002.gguf"], None, UnsupportedModelError, "one part of a split"),
    ],
)
def test_what_cannot_be_chosen_is_said(
    names: list[str], choice: str | None, error: type[ModelLoadError], named: str
) -> None:
    with pytest.raises(error, match=named):
        model_files(HubId("o/n", choice=choice), names)
