"""Ids of models on a Hugging Face hub, and which files of a repository a model is made of."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from duologue.errors import ModelLoadError, UnsupportedModelError
from duologue.models.hf_checkpoint import CONFIG_FILES
from duologue.models.hf_config import CONFIG_FILE
from duologue.models.hf_weights import INDEX_FILE, WEIGHTS_FILE

_ID = re.compile(
    r"(?P<repo>\w[\w.-]{0,95}/\w[\w.-]{0,95})(@(?P<revision>[\w./-]{1,200}?))?(:(?P<choice>[\w./+-]{1,200}))?",
    re.ASCII,
)
_SPLIT_GGUF = re.compile(r"-\d{5}-of-\d{5}\.gguf$", re.IGNORECASE)
_NOT_A_MODEL = re.compile(
    r"mmproj|imatrix|(^|/)\.\.?/|^/|\\", re.IGNORECASE
)  # parts for images, statistics, strange paths
# Weights become int8 whatever the file has: eight bits lose nothing to speak of on the way, and more take longer to fetch.
_PREFERRED = (
    "Q8_0",
    "BF16",
    "F16",
    "F32",
    "Q6_K",
    "Q5_K_M",
    "Q5_1",
    "Q5_K_S",
    "Q5_0",
    "Q4_K_M",
    "Q4_1",
    "Q4_K_S",
    "Q4_0",
)


@dataclass(frozen=True)
class HubId:
    """`ORG/NAME[@REVISION][:CHOICE]`: a repository, its branch, tag or commit ("main" unless given), and which of its GGUF files:
    a file's name, or a part of it such as Q8_0."""

    repo: str
    revision: str = "main"
    choice: str | None = None

    def __str__(self) -> str:
        revision = "" if self.revision == "main" else f"@{self.revision}"
        return f"{self.repo}{revision}" + (f":{self.choice}" if self.choice else "")


def parse_hub_id(text: str) -> HubId | None:
    """None for what cannot be an id."""
    match = _ID.fullmatch(text)
    if match is None or ".." in text or "--" in match["repo"] or match["repo"].endswith((".gguf", ".git")):
        return None
    return HubId(match["repo"], match["revision"] or "main", match["choice"])


def model_files(hub_id: HubId, names: Collection[str]) -> list[str]:
    """The files to fetch, of those that a repository has: one GGUF file, or all of a Hugging Face folder but the shards that its
    index names.

    Safetensors go before GGUF files unless one of these is chosen. Raises UnsupportedModelError or ModelLoadError saying what the
    repository holds instead.
    """
    ggufs = sorted(n for n in names if n.lower().endswith(".gguf") and not _NOT_A_MODEL.search(n))
    if hub_id.choice is not None:
        return [_chosen(hub_id, ggufs)]
    if CONFIG_FILE in names and (WEIGHTS_FILE in names or INDEX_FILE in names):
        weights = WEIGHTS_FILE if WEIGHTS_FILE in names else INDEX_FILE
        return [CONFIG_FILE, *(n for n in CONFIG_FILES if n in names), weights]
    if ggufs:
        return [_preferred(hub_id, ggufs)]
    pickles = sorted(n for n in names if n.endswith((".bin", ".pt", ".pth")))
    if pickles:
        raise UnsupportedModelError(
            f"{hub_id} has its weights as a pickle ({pickles[0]}), which can run any code when it is read, so it is not; choose a "
            "repository, or a revision, with safetensors or GGUF files"
        )
    if any(n.startswith("adapter_") for n in names):
        raise UnsupportedModelError(
            f"{hub_id} is an adapter and no whole model; choose the model it was merged into"
        )
    raise ModelLoadError(
        f"{hub_id} has neither a {CONFIG_FILE} with {WEIGHTS_FILE} nor GGUF files, so there is no model to run; choose another one"
    )


def _chosen(hub_id: HubId, ggufs: list[str]) -> str:
    wanted = (hub_id.choice or "").lower()
    found = [n for n in ggufs if n.lower() == wanted] or [
        n for n in ggufs if re.search(rf"(^|[._/-]){re.escape(wanted)}($|[._/-])", n.lower())
    ]
    if len(found) == 1:
        return _whole(hub_id, found[0])
    what = "none of" if not found else "several of"
    listed = ", ".join(found or ggufs) or "there are none"
    raise ModelLoadError(
        f"{hub_id} names {what} the GGUF files of {hub_id.repo}: {listed}; give the name of one behind the colon"
    )


def _preferred(hub_id: HubId, ggufs: list[str]) -> str:
    if len(ggufs) == 1:
        return _whole(hub_id, ggufs[0])
    for kind in _PREFERRED:
        found = [n for n in ggufs if re.search(rf"(^|[._/-]){kind}($|[._/-])", n, re.IGNORECASE)]
        if len(found) == 1 and not _SPLIT_GGUF.search(found[0]):
            return found[0]
    raise ModelLoadError(
        f"{hub_id} has several GGUF files and none is the obvious one: choose, for example {hub_id}:{ggufs[0]} "
        f"(of {', '.join(ggufs)})"
    )


def _whole(hub_id: HubId, name: str) -> str:
    if _SPLIT_GGUF.search(name):
        raise UnsupportedModelError(
            f"{name} of {hub_id.repo} is one part of a split GGUF file, which is not read; choose a whole one"
        )
    return name
