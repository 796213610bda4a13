"""The optimizer and the passes of an update."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from composer_replication.config.section import Decay, Positive, ReadBy, Section, Weight


class OptimizerConfig(Section):
    """Optimizer and its linear warm-up."""

    type: Literal["adamw", "muon"] = "adamw"
    """Choose which optimizer trains the policy. `adamw` updates all parameters with AdamW. `muon` updates the matrices inside the
    model's blocks with Muon (orthogonalized momentum, arXiv:2502.16982) and everything else with AdamW; both use the same
    learning_rate, because Muon's updates are scaled to the size of AdamW's. Try `muon` when you train all weights, above all
    with DiLoCo, and search the learning rate again. The substrates verl and prime_rl refuse it."""
    learning_rate: Annotated[float, Field(gt=0.0)] = 1e-6
    """Use this learning rate after warm-up."""
    schedule: Literal["constant", "linear"] = "constant"
    """Keep the rate constant after warm-up, or let it fall linearly to zero at the end of the run (linear)."""
    betas: tuple[Decay, Decay] = (0.9, 0.99)
    """Set the decay rates of AdamW's two moments. Muon's momentum is always 0.95."""
    weight_decay: Weight = 0.0
    """Apply this much decoupled weight decay, with either optimizer."""
    warmup_steps: Annotated[int, Field(ge=0)] = 2
    """Raise the rate linearly over this many steps."""
    max_grad_norm: Annotated[float, Field(gt=0.0)] = 1.0
    """Scale the gradient down to this norm when it is larger."""
    micro_batch_tokens: Positive = 16384
    """Put at most this many tokens of trajectories and preference pairs into a forward and backward pass; a longer one goes
    alone. A prefix that they share counts once, or padding counts where the model cannot share prefixes. Lower it to save
    memory; results do not change. Trajectories that teach nothing go through no pass."""
    mini_batches: Positive = 1
    """Cut the rollouts of a step that teach something into this many parts and take an optimizer step on each. Raise it to
    get more out of expensive rollouts; later updates are then off-policy, so watch `rlvr/clip_frac` and `rlvr/ratio/max`."""
    epochs: Positive = 1
    """Go over a step's rollouts this many times."""
    channel_gradients_every: Annotated[int, Field(ge=0)] = 20
    """Measure, in the first step and every so many steps after it, the norm of each channel's gradient on the weights
    (`hint/gradient/norm`) and its cosine with the policy gradient's (`hint/gradient/cosine`), where several channels train.
    Such a step takes one more pass for each, and one over rejected answers where the replay channel does not read them
    (`replay/rejected/logprob/mean`). 0 never measures either. The substrates trl, verl and prime_rl do not either."""
    gradient_checkpointing: Literal["auto"] | bool = "auto"
    """Keep only each layer's input in the forward pass and recompute the rest in the backward pass. It costs about a third more
    compute and saves most activation memory; results do not change. `auto` does it on a GPU, where the model can. Set it to false
    there when the plan of `--dry-run` leaves room."""
    moments: Annotated[Literal["float32", "8bit"], ReadBy("type", "adamw")] = "float32"
    """Keep AdamW's two moments in float32, or in 8 bits with a scale for every 256 of them (arXiv:2110.02861), a quarter of the
    memory. `8bit` needs the extra `torchao` and a C compiler."""
    offload: Annotated[bool, ReadBy("type", "adamw"), ReadBy("moments", "float32")] = False
    """Keep AdamW's moments and a float32 copy of the weights in CPU memory and step there (arXiv:2101.06840). It frees
    8 bytes of device memory per trained weight, and with model.precision = bfloat16 needs no stochastic rounding; each step sends
    gradients and weights over the bus."""

    def checkpoints(self, *, on_gpu: bool) -> bool:
        """Return what `gradient_checkpointing` asks for on a GPU, or on a CPU."""
        return on_gpu if self.gradient_checkpointing == "auto" else self.gradient_checkpointing

    @property
    def updates(self) -> int:
        """Optimizer steps on a step's rollouts."""
        return self.mini_batches * self.epochs
