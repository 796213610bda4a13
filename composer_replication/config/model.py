"""The policy: where it comes from, how precisely it computes, and what of it is trained."""

from __future__ import annotations

from typing import Annotated, Literal, Self, TypeAlias

from pydantic import Field, model_validator

from composer_replication.config.section import Section, Weight, refuse

Precision: TypeAlias = Literal["auto", "float32", "mixed", "bfloat16"]


class LoraConfig(Section):
    """Low-rank adapters on a frozen model (LoRA, arXiv:2106.09685). They need the extra `peft`."""

    rank: Annotated[int, Field(ge=0)] = 0
    """Train adapters of this rank instead of the weights; 0 trains the weights themselves. Set it to 8 to 32 when the weights'
    gradients and moments do not fit on the device, and raise optimizer.learning_rate about tenfold."""
    alpha: Annotated[float, Field(gt=0.0)] = 32.0
    """Scale what an adapter adds by alpha / rank."""
    targets: Annotated[tuple[str, ...], Field(min_length=1)] = ("all-linear",)
    """Put adapters on the linear layers with these names, such as ["q_proj", "v_proj"]; `all-linear` is every one but the output
    head."""

    @model_validator(mode="after")
    def _without_a_rank_nothing_is_read(self) -> Self:
        fields = type(self).model_fields
        for name in ("alpha", "targets") if self.rank == 0 else ():
            if getattr(self, name) != fields[name].default:
                refuse(f"{name} is not read with rank = 0", f"remove {name}, or set rank above 0")
        return self


class ModelConfig(Section):
    """The policy."""

    path: str
    """Load the policy from this local folder or Hugging Face model id, e.g. `Qwen/Qwen2.5-0.5B-Instruct`. It needs a chat
    template. In a folder with LoRA adapters, they are merged into the model that they were trained on."""
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")] = "auto"
    """Train on `auto` (CUDA if there is one), `cpu`, `cuda` or `cuda:N`."""
    precision: Precision = "auto"
    """Choose the number types. `float32` keeps weights and arithmetic in float32. `mixed` keeps the weights in float32 and
    multiplies matrices in bfloat16. `bfloat16` keeps the weights in bfloat16 too, which halves the memory of weights and
    gradients; AdamW then rounds stochastically, because most of its steps are smaller than bfloat16 can hold. `auto` is `mixed`
    with CUDA and `float32` on a CPU. Under LoRA `mixed` and `bfloat16` are the same: frozen weights in bfloat16, adapters in
    float32."""
    attention: Annotated[str, Field(pattern=r"^(auto|eager|sdpa|flex_attention|flash_attention_[234]|[\w.-]+/[\w.@:-]+)$")] = (
        "auto"
    )
    """Compute attention by this kernel of transformers: `sdpa`, `eager`, `flex_attention`, `flash_attention_2` (needs the package
    flash-attn) or one of the Hub's, e.g. `kernels-community/flash-attn`. `auto` leaves the choice to transformers."""
    compile: bool = False
    """Compile the feed-forward layers and norms of the model's blocks with torch.compile, in updates and in rollouts of this
    process. It needs a C compiler and takes a minute at the start."""
    frozen_copies: Literal["device", "cpu"] = "device"
    """Keep the frozen copies of the policy (self-teacher, reference) on its device, or in CPU memory (`cpu`), from where they are
    moved to the device for each pass. LoRA needs no copies."""
    router_balance: Weight = 0.0
    """Add this times the load-balancing loss of a mixture of experts to the loss (Switch Transformer, arXiv:2101.03961, equation
    4), so that its router does not come to choose the same few. Set it, to what the model was pretrained with (0.001 is usual),
    when you train the router or the experts; adapters on attention layers alone need none. 0 adds nothing."""
    router_replay: bool = False
    """Have every token of a mixture of experts go through the experts that it was sampled with when the policy learns from it
    (Rollout Routing Replay, arXiv:2510.11370). Set it where sampler and trainer choose other experts for a share of the tokens:
    with a vLLM or SGLang server, or in bfloat16. Hinted rows and preference pairs have no recorded experts, and are routed
    normally."""
    lora: LoraConfig = LoraConfig()

    @model_validator(mode="after")
    def _compiled_routers_choose_themselves(self) -> Self:
        if self.compile and self.router_replay:
            refuse("router_replay = true and compile = true: routers are compiled", "set compile = false")
        return self

    @model_validator(mode="after")
    def _lora_copies_nothing(self) -> Self:
        if self.lora.rank and self.frozen_copies == "cpu":
            refuse("frozen_copies = cpu is not read with lora.rank above 0: there are no copies", "remove frozen_copies")
        return self

    @model_validator(mode="after")
    def _flash_attention_is_of_half_precision(self) -> Self:
        if self.attention.startswith("flash_attention") and self.precision == "float32":
            refuse(
                f"attention = {self.attention} and precision = float32: flash attention computes in bfloat16",
                "set precision = mixed or bfloat16, or attention = sdpa",
            )
        return self
