"""What a model's KV costs: by token, by page and by dialogue at rest, in the bytes that the engine's cache allocates.

Counted is in pages, because that is how KV is allocated: a page is PAGE_TOKENS positions of all owner layers of one kind, int8
codes and fp32 scales (`kernels/csrc/layout.h`). `KvModel` has only what this needs, so that models which the engine does not run
can be counted as well (`models/kv_config.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from duologue.cache.geometry import KvGeometry
from duologue.cache.resident import DialogueShape, ResidentPages, resident_pages
from duologue.errors import CapacityError, UnsupportedModelError
from duologue.kernels import PAGE_TOKENS
from duologue.models.spec import ModelSpec

GIB = 1 << 30
SCALE_BYTES = 4
_PAGE_ALIGNMENT_BYTES = 64


@dataclass(frozen=True)
class KvLayer:
    """What one layer keeps of a position: `kv_heads` keys of `key_dim` and values of `value_dim`, unless it reads the KV of layer
    `owner`. `window` as in LayerSpec. Where what is kept is not a key and a value (a compressed latent), `head_width` is the size
    of both in a head that would keep them.

    Raises UnsupportedModelError naming the field out of range.
    """

    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    window: int = 0
    owner: int | None = None
    head_width: int | None = None

    def __post_init__(self) -> None:
        for name in ("heads", "kv_heads", "key_dim"):
            if getattr(self, name) < 1:
                raise UnsupportedModelError(f"{name} {getattr(self, name)} must be positive")
        for name in ("value_dim", "window"):
            if getattr(self, name) < 0:
                raise UnsupportedModelError(f"{name} {getattr(self, name)} must not be negative")
        if self.heads % self.kv_heads:
            raise UnsupportedModelError(f"heads {self.heads} is not a multiple of kv_heads {self.kv_heads}")

    @property
    def kept_values(self) -> int:
        """Numbers that it keeps of a position, if they are its own."""
        return self.kv_heads * (self.key_dim + self.value_dim)

    @property
    def int8_bytes(self) -> int:
        """Bytes of these as int8 codes, with a scale for each key and each value."""
        return self.kept_values + self.kv_heads * 2 * SCALE_BYTES

    @property
    def width(self) -> int:
        """Numbers of a key and a value that a query head would keep for itself."""
        return self.key_dim + self.value_dim if self.head_width is None else self.head_width


@dataclass(frozen=True)
class DialogueKv:
    """KV of one dialogue at rest, as allocated."""

    pages: ResidentPages
    global_page_bytes: int
    local_page_bytes: int

    @property
    def total_bytes(self) -> int:
        """Without sparse checkpoints."""
        return (
            self.pages.global_pages * self.global_page_bytes + self.pages.local_pages * self.local_page_bytes
        )

    @property
    def checkpoint_bytes(self) -> int:
        """What sparse checkpoints add."""
        return self.pages.sparse_pages * self.local_page_bytes

    def fit_into(self, budget_bytes: int, *, checkpoints: bool) -> int:
        """Dialogues like this one in so many bytes of pages, however these are shared between the kinds."""
        return budget_bytes // (self.total_bytes + (self.checkpoint_bytes if checkpoints else 0))


@dataclass(frozen=True)
class KvModel:
    """A model as its KV sees it. `assumptions` are sentences about what its source left open. `context_tokens` None: unknown.

    Raises UnsupportedModelError naming the layer whose owner has no KV of the same kind.
    """

    name: str
    layers: tuple[KvLayer, ...]
    context_tokens: int | None = None
    assumptions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.layers:
            raise UnsupportedModelError("the model has no layers")
        for i, layer in enumerate(self.layers):
            if layer.owner is None:
                continue
            if not 0 <= layer.owner < i or self.layers[layer.owner].owner is not None:
                raise UnsupportedModelError(
                    f"layer {i}: {layer.owner} is no earlier layer with KV of its own"
                )
            owner = self.layers[layer.owner]
            if (layer.window, layer.int8_bytes) != (owner.window, owner.int8_bytes):
                raise UnsupportedModelError(f"layer {i}: layer {layer.owner} is of another kind")

    @classmethod
    def of_spec(cls, name: str, spec: ModelSpec, assumptions: tuple[str, ...] = ()) -> KvModel:
        """Of a model that the engine runs."""
        layers = tuple(
            KvLayer(layer.heads, layer.kv_heads, layer.head_dim, layer.head_dim, layer.window, layer.kv_owner)
            for layer in spec.layers
        )
        return cls(name, layers, spec.context_tokens, assumptions)

    @property
    def owners(self) -> tuple[KvLayer, ...]:
        """Layers with KV of their own."""
        return tuple(layer for layer in self.layers if layer.owner is None)

    @property
    def window_tokens(self) -> int:
        """The widest window; 0 without any."""
        return max(layer.window for layer in self.layers)

    def bytes_per_token(self, *, local: bool) -> int:
        """What a position adds to the global pages, or takes in the local ones."""
        return sum(layer.int8_bytes for layer in self.owners if (layer.window > 0) == local)

    def page_bytes(self, *, local: bool) -> int:
        """Bytes of one page of a kind, as `ModelSpec::finish` in kernels/csrc/runtime/model.cpp makes it."""
        used = PAGE_TOKENS * self.bytes_per_token(local=local)
        return -(-used // _PAGE_ALIGNMENT_BYTES) * _PAGE_ALIGNMENT_BYTES

    def dialogue(self, shape: DialogueShape) -> DialogueKv:
        """What one dialogue of this shape keeps in memory between its turns."""
        return DialogueKv(
            resident_pages(shape, self.window_tokens, PAGE_TOKENS),
            self.page_bytes(local=False),
            self.page_bytes(local=True),
        )

    def dialogues_in_pools(
        self, dialogue: DialogueKv, budget_bytes: int, step_tokens: int, *, checkpoints: bool
    ) -> int:
        """Dialogues at rest that an engine with this budget holds: its pages are shared between the kinds before any dialogue is
        known, so the kind that runs out first decides."""
        try:
            geometry = KvGeometry.for_budget(
                budget_bytes,
                page_tokens=PAGE_TOKENS,
                global_page_bytes=dialogue.global_page_bytes,
                local_page_bytes=dialogue.local_page_bytes,
                window_tokens=self.window_tokens,
                step_tokens=step_tokens,
            )
        except CapacityError:
            return 0
        held = geometry.global_pages // dialogue.pages.global_pages
        local = dialogue.pages.local_pages + (dialogue.pages.sparse_pages if checkpoints else 0)
        return min(held, geometry.local_pages // local) if local else held
