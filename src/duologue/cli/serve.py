"""`duologue serve`."""

from __future__ import annotations

import concurrent.futures
import contextlib
import importlib
import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from duologue.cli.examples import examples
from duologue.cli.options import engine_options, load_engine
from duologue.cli.served_models import NamedModel, NamedModelType, kv_budgets
from duologue.cli.units import FiniteRange, origin, positive_byte_size

if TYPE_CHECKING:
    from duologue.engine.engine import Engine

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


@click.command(
    cls=_ServeCommand,
    epilog=examples(
        "duologue serve",
        "duologue serve gemma3-270m --kv-memory 4GiB --port 9000",
        "duologue serve model.gguf --host 0.0.0.0 --api-keys keys.txt",
        "duologue serve --model small=smollm2-135m,kv=0.3 --model large=model.gguf",
        "duologue serve --warm personas/alice.json personas/bob.json",
    ),
)
@engine_options
@click.option(
    "--model",
    "named_models",
    type=NamedModelType(),
    metavar="[NAME=]PATH[,kv=SHARE]",
    multiple=True,
    help="Instead of MODEL, and repeatable: a model by the name that clients use, and its share of --kv-memory.",
)
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
    "--speculation",
    type=click.IntRange(0, 32),
    metavar="N",
    help="Most tokens that a reply drafts from what it repeats, in one step; 0: off.  [default: 8]",
)
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
@click.option(
    "--max-waiting",
    type=click.IntRange(0),
    default=256,
    show_default=True,
    help="Most choices that wait for memory, for each model; a request that finds nobody waiting is let in whole.",
)
@click.option(
    "--max-wait",
    type=FiniteRange(0),
    default=60.0,
    show_default=True,
    help="Seconds that a request waits before it starts.",
)
@click.option(
    "--cors-origin",
    metavar="ORIGIN",
    type=origin,
    multiple=True,
    help="Let scripts of this origin call the API; '*': of any. Repeatable.",
)
@click.option(
    "--allow-anonymous",
    is_flag=True,
    help="Without keys, listen beyond this machine, or answer to any host name and web page.",
)
@click.option("--access-log", is_flag=True, help="Log every request.")
def serve(
    model: str,
    kv_memory: int,
    threads: int | None,
    context: int | None,
    accept_terms: bool,
    named_models: tuple[NamedModel, ...],
    api_keys: Path | None,
    warm: tuple[Path, ...],
    host: str,
    port: int,
    max_num_seqs: int | None,
    max_batch_tokens: int | None,
    speculation: int | None,
    drain_timeout: float,
    max_body: int,
    max_waiting: int,
    max_wait: float,
    cors_origin: tuple[str, ...],
    allow_anonymous: bool,
    access_log: bool,
) -> None:
    """Serve MODEL over HTTP, with OpenAI's API and a chat page.

    MODEL is an alias (smollm2-135m), a GGUF file, a Hugging Face folder, or ORG/NAME of a model on the hub.
    """
    started_s = time.perf_counter()
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    if access_log:
        logging.getLogger("uvicorn.access").setLevel(logging.INFO)
    steps = {
        "max_num_seqs": max_num_seqs,
        "max_batch_tokens": max_batch_tokens,
        "speculation_tokens": speculation,
    }
    scheduler = {name: limit for name, limit in steps.items() if limit is not None}
    models = _chosen_models(model, named_models)
    budgets = kv_budgets(models, kv_memory)
    from duologue.api.tenants import AnonymousTenants, KeyFileTenants
    from duologue.server.bind import bind, is_loopback, page_url
    from duologue.server.limits import Limits

    # What is wrong with the files is said before the model is loaded.
    tenants = AnonymousTenants() if api_keys is None else KeyFileTenants(api_keys)
    personas = []
    if warm:
        from duologue.server.warm import read_personas

        personas = read_personas(warm, tenants.names)

    with bind(host, port) as sock, contextlib.ExitStack() as stack:
        if api_keys is None and not allow_anonymous and not is_loopback(sock):
            raise click.UsageError(
                f"--host {host} is reachable from other machines, and without API keys everybody may use the server; "
                "pass --api-keys FILE, or --allow-anonymous if that is meant"
            )
        # The web stack's imports overlap with reading the weights.
        background = stack.enter_context(concurrent.futures.ThreadPoolExecutor(1))
        web = background.submit(importlib.import_module, "duologue.server.run")
        engines: dict[str, Engine] = {}
        for named, budget in zip(models, budgets, strict=True):
            engine = load_engine(named.path, budget, threads, context, accept_terms, **scheduler)
            stack.enter_context(engine)
            name = named.name or engine.model_name
            if name in engines:
                raise click.UsageError(f"two models are called '{name}'; write --model NAME={named.path}")
            engines[name] = engine
        warmer = None
        if personas:
            from duologue.server.warm import Warmer

            warmer = Warmer(engines, personas)
        server = web.result().Server(
            engines,
            sock,
            tenants=tenants,
            warmer=warmer,
            drain_timeout_s=drain_timeout,
            limits=Limits(max_body, max_waiting, max_wait),
            cors_origins=cors_origin,
            host=host,
            any_host=allow_anonymous,
            access_log=access_log,
        )

        def announce() -> None:
            ready_s = time.perf_counter() - started_s
            served = ", ".join(
                f"{name} with {engine.context_tokens:,} tokens of context" for name, engine in engines.items()
            )
            click.echo(
                f"duologue serves {served} (ready in {ready_s:.2f} s)\n"
                f"  chat page   {page_url(sock)}\n"
                f"  OpenAI API  {page_url(sock)}v1\n"
                "Ctrl-C stops it."
            )

        server.run(announce)


def _chosen_models(model: str, named: tuple[NamedModel, ...]) -> list[NamedModel]:
    """What to serve: on the command line MODEL or --model, which exclude each other there."""
    context = click.get_current_context()
    on_command_line = [
        context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        for name in ("model", "named_models")
    ]
    if all(on_command_line):
        raise click.UsageError(f"MODEL '{model}' and --model exclude each other; write --model {model}")
    if not named or on_command_line[0]:
        return [NamedModel("", model)]
    return list(named)
