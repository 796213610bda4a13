"""The gradient of an optimizer step."""

from __future__ import annotations

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from composer_replication.trainer.learning.sharding import whole


def clip_gradient(accelerator: Accelerator, model: nn.Module, most: float) -> Tensor:
    """Scale the gradient down to the norm `most`, and return the norm that it had. It is a sum in float32 also of bfloat16
    gradients, of which it would have two digits otherwise."""
    parameters = list(model.parameters())
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not any(gradient.dtype == torch.bfloat16 for gradient in gradients):
        return whole(accelerator.clip_grad_norm_(parameters, most))
    each = [whole(torch.linalg.vector_norm(gradient, dtype=torch.float32)) for gradient in gradients]
    norm: Tensor = torch.linalg.vector_norm(torch.stack(each))
    torch.nn.utils.clip_grads_with_norm_(parameters, most, norm)
    return norm
