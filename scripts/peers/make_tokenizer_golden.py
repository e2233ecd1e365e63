"""Write the golden token ids of tests/dialogue with llama.cpp: what the tokenizer must give on the corpus.

    eval "$(scripts/peers/llama_cpp.sh)"
    python scripts/peers/make_tokenizer_golden.py smollm2 MODEL.gguf
    python scripts/peers/make_tokenizer_golden.py gemma3 MODEL.gguf
    python scripts/peers/make_tokenizer_golden.py spm         # of spm_vocabulary.json, which is made if it is missing

Needs the peer environment that llama_cpp.sh builds (DUOLOGUE_PEERS_DIR, LLAMA_CPP_LIB_PATH).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "dialogue" / "data"


def tokenize_with_llama_cpp(model: Path, texts: Sequence[str], *, pieces: bool = False) -> dict[str, Any]:
    """The reply of llama_cpp_tokenize.py, run in the peer's environment: lists of ids under "plain" and
    "special", and under "pieces" the bytes of every token in hex."""
    peers = Path(os.environ.get("DUOLOGUE_PEERS_DIR", ROOT / ".peers"))
    python = peers / "venv" / "bin" / "python"
    if not python.exists():
        raise FileNotFoundError(f"{python} is missing; run scripts/peers/llama_cpp.sh")
    environment = {"LLAMA_CPP_LIB_PATH": str(peers / "llama.cpp" / "bin"), **os.environ}
    script = Path(__file__).with_name("llama_cpp_tokenize.py")
    done = subprocess.run(
        [python, script, model],
        input=json.dumps({"texts": list(texts), "pieces": pieces}),
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"llama.cpp's tokenizer failed: {done.stderr[-2000:]}")
    reply: dict[str, Any] = json.loads(done.stdout)
    return reply


def write_vocabulary(path: Path, metadata: Mapping[str, Any]) -> None:
    """A GGUF file with a vocabulary and nothing else."""
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(8)
    writer.add_feed_forward_length(8)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    for key, value in metadata.items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, list(value))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def spm_metadata(*, space_prefix: bool) -> dict[str, Any]:
    """A small vocabulary in the style of Gemma (or, with a space before the first word, of Llama 2), in GGUF's words."""
    rows = json.loads((DATA / "spm_vocabulary.json").read_text(encoding="utf-8"))
    tokens, scores, types = zip(*rows, strict=True)
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": list(tokens),
        "tokenizer.ggml.scores": [float(score) for score in scores],
        "tokenizer.ggml.token_type": list(types),
        "tokenizer.ggml.bos_token_id": tokens.index("<bos>"),
        "tokenizer.ggml.eos_token_id": tokens.index("<eos>"),
        "tokenizer.ggml.unknown_token_id": tokens.index("<unk>"),
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_space_prefix": space_prefix,
    }


def make_spm_vocabulary() -> list[list[Any]]:
    """Rows of token, score and GGUF type: control tokens, runs of white space, tags, bytes, then words of the calibration text."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    text = (ROOT / "src/duologue/models/data/calibration.txt").read_text(encoding="utf-8")
    words = Tokenizer(models.BPE())
    words.pre_tokenizer = pre_tokenizers.Split("\u2581", "merged_with_next")
    trainer = trainers.BpeTrainer(vocab_size=1200, show_progress=False, limit_alphabet=100)
    words.train_from_iterator([line.replace(" ", "\u2581") for line in text.splitlines()], trainer)
    by_id = sorted(words.get_vocab().items(), key=lambda item: item[1])
    merged = [word for word, _ in by_id if len(word) > 1]
    characters = [word for word, _ in by_id if len(word) == 1]

    control = (
        "<pad>",
        "<eos>",
        "<bos>",
        "<unk>",
        "<unused0>",
        "<unused1>",
        "<start_of_turn>",
        "<end_of_turn>",
    )
    runs = [run * n for run, longest in (("\n", 31), (" ", 31), ("\t", 8)) for n in range(1, longest + 1)]
    user_defined = [
        *(run for run in runs if run != " "),
        "[multimodal]",
        "<h1>",
        "</h1>",
        "<b>",
        "</b>",
        "<\u65e5>",
    ]
    rows: list[list[Any]] = [[text, -1000, 3] for text in control]
    rows += [[text, -1000, 4] for text in user_defined]
    rows += [[f"<0x{byte:02X}>", 0, 6] for byte in range(256)]
    # Every third has the score of the one before it: which of the two comes first is then a question of place.
    rows += [[word, -(i - (i % 3 == 2)), 1] for i, word in enumerate(merged)]
    rows += [[character, -len(merged) - i, 1] for i, character in enumerate(characters)]
    return rows


def write_golden(name: str, reply: Mapping[str, Sequence[Sequence[int]]]) -> None:
    """One line for each text of the corpus: the ids without and, where they are others, with special tokens found in it."""
    pairs = zip(reply["plain"], reply["special"], strict=True)
    rows = [json.dumps([plain] if plain == special else [plain, special]) for plain, special in pairs]
    (DATA / f"golden_{name}.json").write_text("[\n" + ",\n".join(rows) + "\n]\n", encoding="utf-8")
    print(f"{name}: {len(rows)} texts, {sum(map(len, reply['plain']))} tokens")


def tokenize_spm(texts: Sequence[str], folder: Path, *, space_prefix: bool) -> dict[str, Any]:
    """What llama.cpp makes of texts with the small vocabulary."""
    path = folder / "vocabulary.gguf"
    write_vocabulary(path, spm_metadata(space_prefix=space_prefix))
    return tokenize_with_llama_cpp(path, texts, pieces=True)


def main() -> None:
    corpus = json.loads((DATA / "corpus.json").read_text(encoding="utf-8"))
    if sys.argv[1:2] == ["spm"]:
        if not (DATA / "spm_vocabulary.json").exists():
            rows = ",\n".join(json.dumps(row, ensure_ascii=False) for row in make_spm_vocabulary())
            (DATA / "spm_vocabulary.json").write_text(f"[\n{rows}\n]\n", encoding="utf-8")
        with tempfile.TemporaryDirectory() as folder:
            write_golden("spm", tokenize_spm(corpus, Path(folder), space_prefix=False))
            write_golden("spm_prefix", tokenize_spm(corpus, Path(folder), space_prefix=True))
    elif len(sys.argv) == 3:
        write_golden(sys.argv[1], tokenize_with_llama_cpp(Path(sys.argv[2]), corpus))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
