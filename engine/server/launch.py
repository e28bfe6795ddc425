"""launch: from the configuration to a loaded model and a started engine. Slow; runs beside the event loop."""

import logging
from collections.abc import Callable
from functools import partial

import torch

from ...connector import CredentialFiles, KvterraceError, Model, Place, default_address, make_connector
from ...connector.tracing import Tracer, make_tracer
from ..config import EngineConfig
from ..loop import ConnectorFactory, EngineLoop
from ..model import LoadedModel, load_model
from ..transfers import connector_limits

logger = logging.getLogger(__name__)

MODEL_SHARE = 0.9  # of the progress; the rest is the pool and the store
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class LaunchError(Exception):
    """The engine cannot start as it was told to; the message is one line for the user."""


def launch(config: EngineConfig, report: Callable[[float, str], None], *, label: str) -> tuple[LoadedModel, EngineLoop]:
    """report: called with (0..1, what is being done); may raise to give up. label: the model's name for people.

    LaunchError for what the user can mend: files, memory, device, a store that refuses this model.
    """
    try:
        tracer = make_tracer(config.otlp, "kvterrace-engine", instance=label, share=config.otlp_sample)
        device = find_device(config.device)
        loaded = load_model(
            config.model,
            device=device,
            dtype=DTYPES.get(config.dtype),
            progress=lambda fraction, what: report(fraction * MODEL_SHARE, what if fraction < 1 else "model loaded"),
        )
        report(MODEL_SHARE, "allocating the KV pool")
        engine = EngineLoop(loaded, config, _connector_factory(config, loaded, label, report, tracer), tracer=tracer)
    except (ValueError, OSError, MemoryError, RuntimeError, KvterraceError) as error:
        logger.debug("the launch failed", exc_info=True)
        text = str(error).strip() or type(error).__name__
        raise LaunchError(text.splitlines()[0]) from error
    engine.start()
    report(1.0, "ready")
    return loaded, engine


def find_device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"device: {name!r} is not a torch device, such as cpu or cuda:0") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device: {name!r} was asked for, but torch finds no CUDA device here")
    return device


def _connector_factory(
    config: EngineConfig, loaded: LoadedModel, label: str, report: Callable[[float, str], None], tracer: Tracer
) -> ConnectorFactory | None:
    if config.kv_connector == "none":
        return None
    limits = connector_limits(config)
    place = Place(
        address=config.kv_address or default_address(),
        dram_bytes=config.kv_dram_bytes,
        tracer=tracer,
        limits=limits,
        shown=CredentialFiles(config.kv_token_file, config.kv_tls_ca, config.kv_tls_cert, config.kv_tls_key),
    )
    model = Model(loaded.digest, label=label, kv_codec=config.kv_codec)
    report(MODEL_SHARE, f"attaching the {config.kv_connector} store")
    return partial(make_connector, config.kv_connector, model=model, place=place)
