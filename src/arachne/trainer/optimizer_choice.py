"""From the settings of `[optimizer]` to the optimizer that they name."""

from torch import nn

from arachne.core.errors import ConfigError
from arachne.runtime.optimizers import (
    AdamWOptions,
    ClassOptions,
    MuonOptions,
    OptimizerChoice,
    is_matrix_of_block,
)
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


def check_muon_applies(settings: OptimizerSettings, module: nn.Module) -> None:
    """Refuse Muon where every trained parameter would be AdamW's.

    Raises:
        ConfigError: No matrix of a block is trained.
    """
    trained = [(name, p.shape) for name, p in module.named_parameters() if p.requires_grad]
    if settings.name == "muon" and not any(is_matrix_of_block(*each) for each in trained):
        raise ConfigError(
            "optimizer.name is 'muon', which updates matrices of the blocks, and this run trains "
            "none of them; choose 'adamw', or train more by model.train_only and model.freeze"
        )
