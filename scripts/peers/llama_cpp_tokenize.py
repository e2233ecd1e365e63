"""Tokenize with llama.cpp: the reference for golden data and for the live comparison.

Runs in the peer's own environment (see llama_cpp.sh), so it uses nothing of duologue:

    LLAMA_CPP_LIB_PATH=... python llama_cpp_tokenize.py model.gguf < request.json > reply.json

The request is {"texts": [...], "pieces": bool}. The reply has, per text, the ids with special tokens found
("special") and not found ("plain"), and, if asked for, the bytes of every token in hex ("pieces").
"""

from __future__ import annotations

import ctypes
import json
import sys

import llama_cpp  # type: ignore[import-not-found,unused-ignore]


def tokenize(vocab: object, text: str, *, parse_special: bool) -> list[int]:
    data = text.encode()
    room = len(data) + 8
    ids = (llama_cpp.llama_token * room)()
    count = llama_cpp.llama_tokenize(vocab, data, len(data), ids, room, False, parse_special)
    if count < 0:
        raise RuntimeError(f"llama_tokenize needs {-count} tokens for {len(data)} bytes")
    return list(ids[:count])


def piece(vocab: object, token: int) -> str:
    buffer = ctypes.create_string_buffer(1024)
    size = llama_cpp.llama_token_to_piece(vocab, token, buffer, len(buffer), 0, True)
    return buffer.raw[:size].hex()


def main() -> None:
    request = json.load(sys.stdin)
    silent = llama_cpp.llama_log_callback(lambda level, text, user_data: None)
    llama_cpp.llama_log_set(silent, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    params = llama_cpp.llama_model_default_params()
    params.vocab_only = True
    model = llama_cpp.llama_model_load_from_file(sys.argv[1].encode(), params)
    if not model:
        sys.exit(f"llama.cpp cannot load {sys.argv[1]}")
    vocab = llama_cpp.llama_model_get_vocab(model)
    reply: dict[str, object] = {
        name: [tokenize(vocab, text, parse_special=name == "special") for text in request["texts"]]
        for name in ("plain", "special")
    }
    if request.get("pieces"):
        reply["pieces"] = [piece(vocab, i) for i in range(llama_cpp.llama_vocab_n_tokens(vocab))]
    json.dump(reply, sys.stdout)


if __name__ == "__main__":
    main()
