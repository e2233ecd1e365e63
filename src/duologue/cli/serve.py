"""`duologue serve`."""

from __future__ import annotations

import concurrent.futures
import importlib
import logging
import time
from pathlib import Path

import click

from duologue.cli.options import engine_options, load_engine
from duologue.cli.units import FiniteRange, positive_byte_size

_FILE = click.Path(path_type=Path)


class _ServeCommand(click.Command):
    """Lets `--warm` take what a shell makes of `personas/*.json`: every file after it that ends in .json."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        spread: list[str] = []
        in_list = False
        for index, arg in enumerate(args):
            in_list = in_list and not arg.startswith("-") and arg.endswith(".json")
            if in_list and args[index - 1] != "--warm":
                spread.append("--warm")
            in_list = in_list or arg == "--warm" or arg.startswith("--warm=")
            spread.append(arg)
        return super().parse_args(ctx, spread)


@click.command(cls=_ServeCommand)
@engine_options
@click.option(
    "--api-keys", type=_FILE, metavar="FILE", help="Require API keys: hashes and tenants, by 'duologue keys'."
)
@click.option(
    "--warm",
    type=_FILE,
    metavar="FILE...",
    multiple=True,
    help="Personas to have in the cache before serving.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0: any free port."
)
@click.option("--max-num-seqs", type=click.IntRange(1), help="Most sequences in one step.")
@click.option("--max-batch-tokens", type=click.IntRange(1), help="Most tokens in one step.")
@click.option(
    "--drain-timeout",
    type=FiniteRange(0),
    default=30.0,
    show_default=True,
    help="Seconds that running replies get after SIGTERM.",
)
@click.option(
    "--max-body",
    type=positive_byte_size,
    metavar="SIZE",
    default="8MiB",
    show_default=True,
    help="Largest request body.",
)
@click.option("--access-log", is_flag=True, help="Log every request.")
def serve(
    model: str,
    kv_memory: int,
    threads: int | None,
    context: int | None,
    accept_terms: bool,
    api_keys: Path | None,
    warm: tuple[Path, ...],
    host: str,
    port: int,
    max_num_seqs: int | None,
    max_batch_tokens: int | None,
    drain_timeout: float,
    max_body: int,
    access_log: bool,
) -> None:
    """Serve MODEL over HTTP, with OpenAI's API and a chat page.

    MODEL is an alias (smollm2-135m), a GGUF file or a Hugging Face folder.
    """
    started_s = time.perf_counter()
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    if access_log:
        logging.getLogger("uvicorn.access").setLevel(logging.INFO)
    limits = {"max_num_seqs": max_num_seqs, "max_batch_tokens": max_batch_tokens}
    scheduler = {name: limit for name, limit in limits.items() if limit is not None}
    from duologue.api.tenants import AnonymousTenants, KeyFileTenants
    from duologue.server.bind import bind, page_url

    # What is wrong with the files is said before the model is loaded.
    tenants = AnonymousTenants() if api_keys is None else KeyFileTenants(api_keys)
    personas = []
    if warm:
        from duologue.server.warm import read_personas

        personas = read_personas(warm, tenants.names)

    with bind(host, port) as sock, concurrent.futures.ThreadPoolExecutor(1) as background:
        # The web stack's imports overlap with reading the weights.
        web = background.submit(importlib.import_module, "duologue.server.run")
        with load_engine(model, kv_memory, threads, context, accept_terms, **scheduler) as engine:
            warmer = None
            if personas:
                from duologue.server.warm import Warmer

                warmer = Warmer(engine, personas)
            server = web.result().Server(
                engine,
                sock,
                tenants=tenants,
                warmer=warmer,
                drain_timeout_s=drain_timeout,
                max_body_bytes=max_body,
                access_log=access_log,
            )

            def announce() -> None:
                ready_s = time.perf_counter() - started_s
                click.echo(
                    f"duologue serves {engine.model_name} with {engine.context_tokens:,} tokens of context "
                    f"(ready in {ready_s:.2f} s)\n"
                    f"  chat page   {page_url(sock)}\n"
                    f"  OpenAI API  {page_url(sock)}v1\n"
                    "Ctrl-C stops it."
                )

            server.run(announce)
