"""`duologue models`, and its `info`: what a model costs, without running it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from duologue.cli.completion import complete_model
from duologue.cli.examples import examples
from duologue.cli.models_cache import list_models, prune, pull, rm
from duologue.cli.units import positive_byte_size

if TYPE_CHECKING:
    from rich.table import Table

    from duologue.cache.resident import DialogueShape
    from duologue.models.kv_accounting import DialogueKv, KvModel
    from duologue.models.kv_waterfall import Waterfall

_CONTEXTS = (1024, 8192, 32768)


@click.group(
    epilog=examples(
        "duologue models list", "duologue models pull Qwen/Qwen3-0.6B", "duologue models info smollm2-135m"
    )
)
def models() -> None:
    """List, fetch and remove models, and tell what they cost."""


for _command in (list_models, pull, rm, prune):
    models.add_command(_command)


@models.command(
    epilog=examples(
        "duologue models info smollm2-135m",
        "duologue models info duologue-13b --context 8192 --dialogues 2000 --json",
        "duologue models info model.gguf --kv-memory 12GiB --plot kv.png",
    )
)
@click.argument("name", shell_complete=complete_model)
@click.option(
    "--context",
    "contexts",
    type=click.IntRange(1),
    multiple=True,
    metavar="N",
    help="Tokens of a dialogue; may be repeated. 1,024, 8,192 and 32,768 as far as the model goes, unless given.",
)
@click.option(
    "--dialogues", type=click.IntRange(1), default=1, show_default=True, help="Memory of so many dialogues."
)
@click.option(
    "--message-tokens", type=click.IntRange(0), default=53, show_default=True, help="Of the last message."
)
@click.option(
    "--reply-tokens", type=click.IntRange(0), default=53, show_default=True, help="Of the last reply."
)
@click.option("--kv-memory", type=positive_byte_size, metavar="SIZE", default="1GiB", show_default=True,
              help="Count the dialogues that fit into it.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--plot", type=click.Path(path_type=Path), metavar="FILE.png", help="Draw the way down, step by step."
)
def info(
    name: str,
    contexts: tuple[int, ...],
    dialogues: int,
    message_tokens: int,
    reply_tokens: int,
    kv_memory: int,
    as_json: bool,
    plot: Path | None,
) -> None:
    """Show what the KV of model NAME costs by token, by page and by dialogue, and which technique saves what.

    NAME is an alias, a GGUF file, a Hugging Face folder, a config.json of almost any decoder, or one of our own sizes, such as
    duologue-13b. Weights are not read.
    """
    from duologue.bench.kv_plot import plot_waterfalls
    from duologue.bench.plot import check_plot
    from duologue.cache.resident import DialogueShape
    from duologue.models.kv_source import kv_model
    from duologue.models.kv_waterfall import waterfall

    if plot is not None:
        check_plot(plot)
    model = kv_model(name, progress=True)
    shapes = [
        DialogueShape(tokens, message_tokens, reply_tokens, min(DialogueShape.closing_tokens, message_tokens))
        for tokens in contexts or _contexts_of(model)
    ]
    counted = [(shape, model.dialogue(shape), waterfall(model, shape)) for shape in shapes]
    if as_json:
        report = _model_dict(model)
        report["dialogues"] = [
            _dialogue_dict(model, shape, kv, steps, dialogues, kv_memory) for shape, kv, steps in counted
        ]
        click.echo(json.dumps(report, indent=2))
    else:
        _print(model, counted, dialogues, kv_memory)
    if plot is not None:
        plot_waterfalls(plot, model.name, {shape.tokens: steps for shape, _, steps in counted})


def _contexts_of(model: KvModel) -> tuple[int, ...]:
    limit = model.context_tokens or _CONTEXTS[-1]
    return tuple(tokens for tokens in _CONTEXTS if tokens <= limit) or (limit,)


def _kinds(model: KvModel) -> Iterator[tuple[str, int, int, int]]:
    """(kind, layers, bytes per token, bytes per page)"""
    for kind, local in (("global", False), ("local", True)):
        count = sum((layer.window > 0) == local for layer in model.owners)
        yield kind, count, model.bytes_per_token(local=local), model.page_bytes(local=local)
    yield "shared", len(model.layers) - len(model.owners), 0, 0


def _pool_dialogues(model: KvModel, kv: DialogueKv, budget_bytes: int, *, checkpoints: bool) -> int:
    from duologue.engine.scheduler import SchedulerConfig

    step_tokens = SchedulerConfig.max_batch_tokens
    return model.dialogues_in_pools(kv, budget_bytes, step_tokens, checkpoints=checkpoints)


def _model_dict(model: KvModel) -> dict[str, Any]:
    from duologue.kernels import PAGE_TOKENS

    return {
        "model": model.name,
        "context_tokens": model.context_tokens,
        "assumptions": list(model.assumptions),
        "window_tokens": model.window_tokens,
        "page_tokens": PAGE_TOKENS,
        "kinds": {
            kind: {"layers": layers, "bytes_per_token": token_bytes, "page_bytes": page_bytes}
            for kind, layers, token_bytes, page_bytes in _kinds(model)
        },
    }


def _dialogue_dict(
    model: KvModel, shape: DialogueShape, kv: DialogueKv, steps: Waterfall, count: int, budget_bytes: int
) -> dict[str, Any]:
    from duologue.models.kv_accounting import GIB

    result: dict[str, Any] = {
        "tokens": shape.tokens,
        "message_tokens": shape.message_tokens,
        "reply_tokens": shape.reply_tokens,
        "global_pages": kv.pages.global_pages,
        "local_pages": kv.pages.local_pages,
        "checkpoint_pages": kv.pages.sparse_pages,
        "count": count,
        "kv_memory_bytes": budget_bytes,
    }
    for key, checkpoints in (("bare", False), ("with_checkpoints", True)):
        total_bytes = kv.total_bytes + (kv.checkpoint_bytes if checkpoints else 0)
        result[key] = {
            "bytes": total_bytes,
            "bytes_of_all": total_bytes * count,
            "dialogues_per_gib": kv.fit_into(GIB, checkpoints=checkpoints),
            "dialogues_in_kv_memory": kv.fit_into(budget_bytes, checkpoints=checkpoints),
            "dialogues_in_engine": _pool_dialogues(model, kv, budget_bytes, checkpoints=checkpoints),
        }
    result["waterfall"] = [
        {
            "step": step.key,
            "bytes": step.total_bytes,
            "factor_of_step": steps.factor_of_step(i),
            "factor_of_multi_head": steps.factor_of_first(i),
            "factor_of_grouped": steps.factor_of_grouped(i),
        }
        for i, step in enumerate(steps.steps)
    ]
    return result


def _print(
    model: KvModel,
    counted: list[tuple[DialogueShape, DialogueKv, Waterfall]],
    dialogues: int,
    budget_bytes: int,
) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    context = "unknown" if model.context_tokens is None else f"{model.context_tokens:,} tokens"
    console.print(f"{model.name}: {len(model.layers)} layers, context {context}", markup=False)
    for assumption in model.assumptions:
        console.print(f"assumed: {assumption}", markup=False)
    console.print(_kind_table(model))
    for shape, kv, steps in counted:
        beyond = model.context_tokens is not None and shape.tokens > model.context_tokens
        console.print(
            f"One dialogue of {shape.tokens:,} tokens{', more than its context' if beyond else ''} "
            f"(last message {shape.message_tokens}, last reply {shape.reply_tokens}):"
        )
        console.print(_waterfall_table(steps))
        for line in _memory_lines(model, kv, dialogues, budget_bytes):
            console.print(line)
        console.print()


def _table(*columns: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    table.add_column(columns[0], no_wrap=True)
    for column in columns[1:]:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _kind_table(model: KvModel) -> Table:
    from duologue.kernels import PAGE_TOKENS

    table = _table("layers", "count", "bytes/token", f"bytes/page of {PAGE_TOKENS}")
    windows = sorted({layer.window for layer in model.owners if layer.window})
    labels = {
        "global": "global, KV of their own",
        "local": f"window {', '.join(f'{w:,}' for w in windows)}, KV of their own",
        "shared": "KV of an earlier layer",
    }
    for kind, layers, token_bytes, page_bytes in _kinds(model):
        if layers:
            table.add_row(labels[kind], str(layers), f"{token_bytes:,}", f"{page_bytes:,}")
    return table


def _waterfall_table(steps: Waterfall) -> Table:
    table = _table("step", "bytes", "factor", "of first", "of GQA")
    for i, step in enumerate(steps.steps):
        factors = (steps.factor_of_step(i), steps.factor_of_first(i), steps.factor_of_grouped(i))
        shown = ("" if i == 0 else f"{factors[0]:.2f}x", *(f"{factor:.2f}x" for factor in factors[1:]))
        table.add_row(step.label, f"{step.total_bytes:,}", *shown)
    return table


def _memory_lines(model: KvModel, kv: DialogueKv, dialogues: int, budget_bytes: int) -> Iterator[str]:
    pages = kv.pages
    local = f", {pages.local_pages:,} local" if model.window_tokens else ""
    sparse = f"; {pages.sparse_pages:,} local of sparse checkpoints" if pages.sparse_pages else ""
    yield f"pages: {pages.global_pages:,} global{local}{sparse}"
    each = ((False, kv.total_bytes), (True, kv.total_bytes + kv.checkpoint_bytes))
    for checkpoints, total_bytes in each if kv.checkpoint_bytes else each[:1]:
        suffix = " with sparse checkpoints" if checkpoints else ""
        yield (
            f"{dialogues:,} dialogue{'' if dialogues == 1 else 's'}{suffix}: {_size(dialogues * total_bytes)}; "
            f"{_size(budget_bytes)} hold {kv.fit_into(budget_bytes, checkpoints=checkpoints):,} "
            f"({_pool_dialogues(model, kv, budget_bytes, checkpoints=checkpoints):,} as the engine shares it)"
        )


def _size(size_bytes: int) -> str:
    size = float(size_bytes)
    for unit in ("bytes", "KiB", "MiB"):
        if size < 1024:
            return f"{size:,.0f} {unit}" if unit == "bytes" else f"{size:,.1f} {unit}"
        size /= 1024
    return f"{size:,.2f} GiB".replace(".00", "")
