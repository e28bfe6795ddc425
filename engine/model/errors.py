"""Errors of this folder: both are ValueErrors, since the caller's file or conversation is at fault.

ModelError            the files cannot be loaded: unsupported, incomplete or damaged
ChatTemplateError     the model has no chat template, or its template refuses this conversation
"""


class ModelError(ValueError):
    """A model that cannot be loaded; the message names what is wrong and, if that helps, what is supported."""


class ChatTemplateError(ValueError):
    """A conversation that cannot be rendered; the message is the template's own where it gave one."""
