"""Whether a transform of `torch.func`, such as vmap, is active."""

import torch


def is_transformed() -> bool:
    """Return whether the caller runs inside a transform, which refuses some operations."""
    return torch._C._functorch.peek_interpreter_stack() is not None
