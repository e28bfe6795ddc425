"""Models the engine runs: loading, tokenizer, forward pass. load_model is the way in."""

from .config import ModelConfig
from .errors import ChatTemplateError, ModelError
from .llama import LlamaModel
from .load import LoadedModel, load_model, read_tokenizer
from .rope import RopeConfig
from .tokenizer import IncrementalDetokenizer, Tokenizer

__all__ = [
    "ChatTemplateError",
    "IncrementalDetokenizer",
    "LlamaModel",
    "LoadedModel",
    "ModelConfig",
    "ModelError",
    "RopeConfig",
    "Tokenizer",
    "load_model",
    "read_tokenizer",
]
