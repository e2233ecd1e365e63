"""`duologue serve`."""

from __future__ import annotations

import concurrent.futures
import importlib
import logging
import time

import click

from duologue.cli.options import engine_options, load_engine
from duologue.cli.units import byte_size


@click.command()
@engine_options
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0: any free port."
)
@click.option("--max-num-seqs", type=click.IntRange(1), help="Most sequences in one step.")
@click.option("--max-batch-tokens", type=click.IntRange(1), help="Most tokens in one step.")
@click.option(
    "--drain-timeout",
    type=click.FloatRange(0),
    default=30.0,
    show_default=True,
    help="Seconds that running replies get after SIGTERM.",
)
@click.option(
    "--max-body",
    type=byte_size,
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
    from duologue.server.bind import bind, page_url

    with bind(host, port) as sock, concurrent.futures.ThreadPoolExecutor(1) as background:
        # The web stack's imports overlap with reading the weights.
        web = background.submit(importlib.import_module, "duologue.server.run")
        with load_engine(model, kv_memory, threads, context, **scheduler) as engine:
            server = web.result().Server(
                engine, sock, drain_timeout_s=drain_timeout, max_body_bytes=max_body, access_log=access_log
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
