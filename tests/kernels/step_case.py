"""Small random decoders for the executor's tests: packed for the executor, plain for the numpy reference."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from duologue.kernels import PAGE_TOKENS, _native
from duologue.kernels.reference import step as reference
from duologue.kernels.rows import quantize_rows
from duologue.models.pack import pack_model
from duologue.models.packed_model import PackedModel
from duologue.models.random_model import random_spec
from duologue.models.rope import rope_kind
from duologue.models.spec import Mlp, ModelSpec

Ids = npt.NDArray[np.int32]
Logits = npt.NDArray[np.float32]


def reference_decoder(spec: ModelSpec, weights: dict[str, npt.NDArray[np.float32]]) -> reference.Decoder:
    def linear(*names: str) -> reference.Linear:
        parts = [quantize_rows(weights[name]) for name in names]
        biased = f"{names[0]}_bias" in weights
        return reference.Linear(
            np.concatenate([c for c, _ in parts]),
            np.concatenate([s for _, s in parts]),
            np.concatenate([weights[f"{name}_bias"] for name in names]) if biased else None,
        )

    layers = []
    for i, layer in enumerate(spec.layers):
        own = f"layers.{i}."
        cos, sin = rope_kind(layer).tables(spec.context_tokens)
        qkv = [own + name for name in (("q", "k", "v") if layer.kv_owner is None else ("q",))]
        vectors = ("attention_post_norm", "mlp_post_norm", "q_norm", "k_norm", "sinks")
        layers.append(
            reference.Layer(
                heads=layer.heads,
                kv_heads=layer.kv_heads,
                head_dim=layer.head_dim,
                window=layer.window,
                kv_owner=layer.kv_owner,
                rope_cos=cos,
                rope_sin=sin,
                attention_norm=weights[own + "attention_norm"],
                mlp_norm=weights[own + "mlp_norm"],
                qkv=linear(*qkv),
                output=linear(own + "output"),
                gate=linear(own + "gate") if layer.mlp.gated else None,
                up=linear(own + "up"),
                down=linear(own + "down"),
                gelu=layer.mlp is Mlp.GATED_GELU,
                softmax_scale=layer.softmax_scale or 0.0,
                attention_softcap=layer.attention_softcap,
                qkv_clamp=layer.qkv_clamp,
                mlp_clamp=layer.mlp_clamp,
                down_groups=spec.down_groups(i),
                key_offset=(
                    weights[own + "key_offset"].reshape(layer.kv_heads, layer.head_dim)
                    if own + "key_offset" in weights
                    else None
                ),
                **{name: weights.get(own + name) for name in vectors},
            )
        )
    return reference.Decoder(
        spec.norm_eps,
        linear("embedding"),
        linear("embedding" if spec.tied_head else "head"),
        weights["final_norm"],
        layers,
        spec.embedding_scale,
        weights.get("embedding_channels"),
        spec.logit_softcap,
    )


def key_offsets(spec: ModelSpec, seed: int) -> dict[str, npt.NDArray[np.float32]]:
    """A vector to take off the keys of every layer that stores some."""
    rng = np.random.default_rng(seed)
    return {
        f"layers.{i}.key_offset": rng.standard_normal(layer.kv_heads * layer.head_dim).astype(np.float32)
        for i, layer in enumerate(spec.layers)
        if layer.kv_owner is None
    }


def make_spec(
    heads: int,
    kv_heads: int,
    *,
    windows: Sequence[int] = (0, 0),
    owners: Sequence[int | None] | None = None,
    head_dim: int = 32,
    mlp_size: int = 176,
    tied_head: bool = False,
    embedding_scale: float = 1.0,
    logit_softcap: float = 0.0,
    **of_layers: Any,
) -> ModelSpec:
    """Sizes that divide neither the kernels' tiles nor each other; `of_layers` are further fields of every layer."""
    spec = random_spec(
        hidden=96,
        layers=len(windows),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        mlp=mlp_size,
        vocab=203,
        windows=windows,
        kv_owners=owners,
        tied_head=tied_head,
    )
    layers = tuple(dataclasses.replace(layer, **of_layers) for layer in spec.layers)
    return dataclasses.replace(
        spec, layers=layers, embedding_scale=embedding_scale, logit_softcap=logit_softcap
    )


@dataclass
class Branch:
    """A sequence in the tests' own pool: tokens computed so far and its pages of both kinds."""

    tokens: Ids
    pages: npt.NDArray[np.int32]  # [columns], used for both kinds
    computed: int = 0


class StepCase:
    """One executor over a pool, driven by hand."""

    def __init__(
        self,
        spec: ModelSpec,
        weights: dict[str, npt.NDArray[np.float32]],
        *,
        threads: int = 1,
        isa: str = "",
        pages: int = 80,
    ) -> None:
        self.spec = spec
        self.packed = PackedModel("random", spec, pack_model(spec, weights), b"")
        self.model = self.packed.native()
        self.executor = _native.Executor(self.model, threads, isa)
        # Pages begin as NaN scales and wild codes: nothing may depend on what was not stored.
        self.pools = [
            np.full((pages, size), 0xFF, dtype=np.uint8) if size else None
            for size in (self.model.global_page_bytes, self.model.local_page_bytes)
        ]
        self.free = list(np.random.default_rng(5).permutation(pages))

    def sequence(self, tokens: Ids) -> Branch:
        count = -(-len(tokens) // PAGE_TOKENS)
        return Branch(tokens, np.array([self.free.pop() for _ in range(count)], dtype=np.int32))

    def step(self, work: list[tuple[Branch, int]]) -> list[Logits]:
        """Advance each sequence by its count of tokens; logits of all these tokens, one array for each sequence."""
        counts = [count for _, count in work]
        return np.split(self.chosen_rows(work, range(sum(counts))), np.cumsum(counts)[:-1])

    def chosen_rows(self, work: list[tuple[Branch, int]], chosen: Sequence[int]) -> Logits:
        """Advance as `step`; logits [chosen, vocab] of these tokens only, counted within the step."""
        columns = max(-(-(sequence.computed + count) // PAGE_TOKENS) for sequence, count in work)
        table = np.full((len(work), columns), 0, dtype=np.int32)
        for row, (sequence, _) in enumerate(work):
            used = sequence.pages[:columns]
            table[row, : len(used)] = used
        counts = [count for _, count in work]
        starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        tokens = np.concatenate([s.tokens[s.computed : s.computed + count] for s, count in work]).astype(
            np.int32
        )
        first = np.array([s.computed for s, _ in work], dtype=np.int32)
        logits = np.empty((len(chosen), self.spec.vocab_size), dtype=np.float32)
        self.executor.step(
            tokens,
            starts,
            first,
            table,
            table,
            *self.pools,
            np.array(chosen, dtype=np.int32),
            logits,
            None,
            None,
            True,
        )
        for sequence, count in work:
            sequence.computed += count
        return logits

    def run(self, tokens: Ids, chunks: Sequence[int]) -> Logits:
        """Logits [n, vocab] of one sequence computed in the given chunks (the last repeated to the end)."""
        sequence, rows, i = self.sequence(tokens), [], 0
        while sequence.computed < len(tokens):
            count = min(chunks[min(i, len(chunks) - 1)], len(tokens) - sequence.computed)
            rows += self.step([(sequence, count)])
            i += 1
        self.free += list(sequence.pages)
        return np.concatenate(rows)
