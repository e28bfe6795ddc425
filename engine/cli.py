"""The `kvterrace engine` sub-command. torch is imported only when it runs."""

import logging
import re
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from .tokenizer_cli import register as register_tokenizer

PROGRAM = "kvterrace engine"
GRACE_S = 10.0

_UNITS = {"": 1, "B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40} | {
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
}
#: Configuration fields whose flag has another name.
_FLAGS = {
    "kv_pool_bytes": "--kv-pool",
    "kv_dram_bytes": "--kv-dram",
    "max_queue_wait_s": "--max-queue-wait",
    "model": "MODEL",
    "prefix_cache": "--no-prefix-cache",
    "slo_ttft_s": "--slo-ttft",
    "slo_itl_s": "--slo-itl",
}


def register(app: typer.Typer) -> None:
    """Add `engine` and `tokenizer` to the program's commands."""
    app.command("engine")(engine)
    register_tokenizer(app)


def parse_size(text: str) -> int:
    """Bytes of "4GiB", "512 MiB", "1.5GB" or a plain number of bytes, for typer."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    unit = _UNITS.get(found[2].upper()) if found else None
    if found is None or unit is None:
        raise typer.BadParameter(f"{text!r} is not a size; write a number and a unit, such as 4GiB or 500MB")
    return int(float(found[1]) * unit)


def engine(  # noqa: PLR0913, PLR0917  one argument a flag
    model: Annotated[Path, typer.Argument(help="GGUF file or Hugging Face directory.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 lets the system choose.")] = 8000,
    api_keys: Annotated[Path | None, typer.Option(help="TOML file of who may call: keys by SHA-256, roles.")] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="PEM file of this server's certificate; it speaks TLS.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="PEM file of the key of --tls-cert.")] = None,
    tls_ca: Annotated[
        Path | None, typer.Option(help="PEM file of the CA whose client certificates are believed.")
    ] = None,
    insecure_listen: Annotated[
        bool, typer.Option("--insecure-listen", help="Listen where other hosts can reach it, whoever they are.")
    ] = False,
    served_model_name: Annotated[str | None, typer.Option(help="Name in requests; default: of the file.")] = None,
    kv_connector: Annotated[
        str | None, typer.Option(help="Where KV beyond HBM is kept: none, embedded (default) or sidecar.")
    ] = None,
    kv_address: Annotated[str | None, typer.Option(help="The sidecar: unix:/PATH or HOST:PORT.")] = None,
    kv_token_file: Annotated[Path | None, typer.Option(help="File of the token to show to the sidecar.")] = None,
    kv_tls_ca: Annotated[
        Path | None, typer.Option(help="Speak TLS to the sidecar: PEM file of its CA, or 'system'.")
    ] = None,
    kv_tls_cert: Annotated[Path | None, typer.Option(help="PEM file of the certificate to show to it.")] = None,
    kv_tls_key: Annotated[Path | None, typer.Option(help="PEM file of the key of --kv-tls-cert.")] = None,
    kv_dram: Annotated[
        int | None, typer.Option(parser=parse_size, metavar="SIZE", help="DRAM tier of the embedded store: 4GiB.")
    ] = None,
    kv_codec: Annotated[
        str | None, typer.Option(help="Lossy form of KV in the store: none (default), fp8 or int8; see quality.")
    ] = None,
    kv_pool: Annotated[
        int | None, typer.Option(parser=parse_size, metavar="SIZE", help="HBM pool, such as 2GiB.")
    ] = None,
    max_step_tokens: Annotated[int | None, typer.Option(help="Tokens the model is fed in one step.")] = None,
    max_running: Annotated[int | None, typer.Option(help="Sequences in one step.")] = None,
    max_queue: Annotated[int | None, typer.Option(help="Requests waiting to run; more get 429.")] = None,
    max_queue_wait: Annotated[float | None, typer.Option(help="Longest wait to run, seconds; then 429.")] = None,
    receipts: Annotated[
        int | None, typer.Option(help="Last requests whose receipts are kept, for /admin/receipts; default 1024.")
    ] = None,
    otlp: Annotated[
        str | None, typer.Option(help="Send OpenTelemetry spans to this collector, such as http://127.0.0.1:4318.")
    ] = None,
    otlp_sample: Annotated[
        float | None, typer.Option(help="Share of the requests without a trace that begin one (1.0).")
    ] = None,
    slo_ttft: Annotated[
        float | None, typer.Option(help="Seconds to the first token that requests are to meet; counted as goodput.")
    ] = None,
    slo_itl: Annotated[
        float | None, typer.Option(help="Mean seconds between tokens that requests are to meet; counted as goodput.")
    ] = None,
    no_prefix_cache: Annotated[bool, typer.Option("--no-prefix-cache", help="Share nothing between requests.")] = False,
    device: Annotated[str | None, typer.Option(help="torch device, such as cpu or cuda:0.")] = None,
    dtype: Annotated[str | None, typer.Option(help="auto, float32, bfloat16 or float16.")] = None,
    threads: Annotated[int | None, typer.Option(help="torch threads; 0 is torch's own choice.")] = None,
    max_model_len: Annotated[int | None, typer.Option(help="Prompt and output together; default: the model's.")] = None,
    grace: Annotated[float, typer.Option(min=0, help="Seconds for requests in flight after SIGTERM.")] = GRACE_S,
    config: Annotated[Path | None, typer.Option(help="TOML file with more settings.")] = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Serve a model over the OpenAI API until SIGTERM or Ctrl-C."""
    flags: dict[str, object] = {
        "api_keys": api_keys,
        "tls_cert": tls_cert,
        "tls_key": tls_key,
        "tls_ca": tls_ca,
        "insecure_listen": insecure_listen or None,
        "kv_connector": kv_connector,
        "kv_address": kv_address,
        "kv_token_file": kv_token_file,
        "kv_tls_ca": kv_tls_ca,
        "kv_tls_cert": kv_tls_cert,
        "kv_tls_key": kv_tls_key,
        "kv_dram_bytes": kv_dram,
        "kv_codec": kv_codec,
        "kv_pool_bytes": kv_pool,
        "max_step_tokens": max_step_tokens,
        "max_running": max_running,
        "max_queue": max_queue,
        "max_queue_wait_s": max_queue_wait,
        "receipts": receipts,
        "otlp": otlp,
        "otlp_sample": otlp_sample,
        "slo_ttft_s": slo_ttft,
        "slo_itl_s": slo_itl,
        "prefix_cache": False if no_prefix_cache else None,
        "device": device,
        "dtype": dtype,
        "threads": threads,
        "max_model_len": max_model_len,
    }
    given = {"model": model, **{name: value for name, value in flags.items() if value is not None}}
    _set_up_logging(log_level)
    name = served_model_name or (model.name if model.is_dir() else model.stem)
    _run(given, config, host=host, port=port, name=name, grace_s=grace)


def _run(given: dict[str, object], toml: Path | None, *, host: str, port: int, name: str, grace_s: float) -> None:
    try:
        from .config import load_config  # noqa: PLC0415  the engine extra may be missing

        settings = load_config(toml, **given)
        from .server.run import LaunchError, ServerOptions, run  # noqa: PLC0415  torch takes seconds: last
    except ImportError as error:
        _fail(f"{error}; it comes with: pip install 'kvterrace[engine]'")
    except (ValueError, OSError) as error:
        _fail("; ".join(_spell(line) for line in str(error).splitlines()))
    try:
        run(settings, ServerOptions(host, port, name, grace_s, announce=typer.echo))
    except LaunchError as error:
        _fail(str(error))


def _spell(line: str) -> str:
    """A configuration error with the field's flag before it."""
    field, colon, reason = line.partition(": ")
    if not colon or not field.isidentifier() or field == "engine":
        return line
    return f"{_FLAGS.get(field, '--' + field.replace('_', '-'))}: {reason}"


def _set_up_logging(level: str) -> None:
    levels = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
    if level not in levels:
        _fail(f"--log-level: {level!r} is none of {', '.join(levels)}")
    logging.basicConfig(level=levels[level], format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if level != "debug":  # uvicorn tells of its every start and stop
        logging.getLogger("uvicorn").setLevel(logging.WARNING)


def _fail(message: str) -> NoReturn:
    typer.echo(f"{PROGRAM}: {message}", err=True)
    sys.exit(2)
