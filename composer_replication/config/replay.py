"""The run file's fields of what the replay channel asks teachers, and of which of their pairs it keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from composer_replication.config.section import Positive, ReadBy, Section, Share

GateRule: TypeAlias = Literal["off", "flat", "cascade", "sweep", "any"]
BackendName: TypeAlias = Literal["builtin", "data_juicer", "executor", "ray"]

_GATED = ReadBy("rule", "flat", "cascade", "sweep", "any")


class GateConfig(Section):
    """Which states of the traces teachers are asked about, and in which order: docs/gate.md. `composer replay` and
    `composer plan` take the same options. The draws of the audit follow from the run's seed."""

    rule: GateRule = "off"
    """Choose who is asked where. `off` asks every teacher about every state. `flat` asks all teachers where there is a ground: a
    high entropy, a finding or a low score. `cascade` asks the cheap teacher where there is a ground, and the others where the
    cheap one does not do what the policy did. `sweep` asks the cheap teacher everywhere, and the others where it does not agree.
    `any` asks the cheap teacher everywhere, and the others where it does not agree or there is a ground. Set `cascade` when
    teachers cost money; it needs two teachers with prices."""
    cheap: Annotated[str | None, _GATED] = None
    """Name the teacher that is asked first. By default it is the one whose answers cost least. Set it when another teacher is the
    better judge of what is settled."""
    uncertain: Annotated[Share, _GATED] = 0.3
    """Count this share of the states as uncertain: those at which the policy's action had the highest mean entropy. 0 turns this
    ground off and saves the policy's pass over its own trajectories. Raise it when the audit finds many missed pairs."""
    findings: Annotated[bool, _GATED] = True
    """Count the finding of a detector of `loss.hint.detectors` as a ground. Turn it off to judge by entropy alone."""
    doubtful: Annotated[Share, _GATED] = 0.0
    """Count this share of the states as a ground: those whose action the process reward model of `reward.prm.path` scores lowest.
    0 asks no such model. Set it to 0.2 or so when you have trained one; `reward.prm.weight` may be 0."""
    audit: Annotated[Share, _GATED] = 0.05
    """Ask about a state that the gate would leave out with this chance, which estimates what the gate misses. With 0 nothing is
    known of what was missed. Raise it for a pilot, and lower it once you know."""
    reach: Annotated[Positive | None, _GATED] = None
    """Assume that an endpoint's prompt cache forgets a prompt after this many turns of a trace, and ask about the turns of a gap
    where that is cheaper than a cold prompt after it. By default no cache forgets; Anthropic's looks back about 7 turns."""


_IF_ENABLED = ReadBy("enabled", True)


class NormalizeConfig(Section):
    """The normaliser that drops pairs which are not worth training on: docs/replaysim.md. It reads the pairs that training makes
    of teachers' answers, before they are tokenised and verified; `composer pairs normalize` does the same to a file."""

    enabled: bool = False
    """Drop pairs of the teachers by a recipe. Turn it on when pairs are repeated, very short or mostly punctuation."""
    recipe: Annotated[Path | None, _IF_ENABLED] = None
    """Read the operators from this recipe file, in data-juicer's YAML form. By default it is the one of the package, which keeps
    one pair per chosen action, whatever the state; name one without `document_deduplicator` for agents that repeat actions."""
    backend: Annotated[BackendName, _IF_ENABLED] = "builtin"
    """Choose what runs the operators. `builtin` needs nothing installed and knows the four operators of the package's recipe.
    `data_juicer` calls data-juicer in this process, `executor` in a process of its own, and `ray` in its executor for Ray; they
    know all of data-juicer's filters and need the extra `replaysim`."""
    ray_address: Annotated[str | None, ReadBy("backend", "ray")] = None
    """Give the address of the Ray cluster for the backend `ray`. By default one is started on this machine."""
