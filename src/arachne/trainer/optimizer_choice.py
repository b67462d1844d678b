"""From the settings of `[optimizer]` to the optimizer that they name."""

from arachne.runtime.optimizers import AdamWOptions, ClassOptions, MuonOptions, OptimizerChoice
from arachne.trainer.settings.optimizer import OptimizerSettings


def optimizer_choice(settings: OptimizerSettings) -> OptimizerChoice:
    """What updates the parameters; whether it can is found out where they are known."""
    adamw = AdamWOptions(
        betas=settings.betas,
        eps=settings.eps,
        weight_decay=settings.weight_decay,
        decay_1d=settings.decay_1d,
        has_8bit_moments=settings.needs_bitsandbytes,
    )
    if settings.name in ("adamw", "adamw8bit"):
        return adamw
    if settings.name == "muon":
        return MuonOptions(options=settings.options, rest=adamw)
    return ClassOptions(
        path=settings.name,
        options=settings.options,
        is_whole=settings.whole_matrices,
        decay_1d=settings.decay_1d,
    )
