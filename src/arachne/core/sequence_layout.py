"""How a model's forward pass is cut along the sequence, told by module and argument names.

A model family fills in one `SequenceLayout`; the runtime hooks the modules it names. Inside the
first split and the gather every rank of a launch holds only its tokens; attention sees them all.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitInput:
    """Split one argument of a module.

    Attributes:
        module: Dotted module name, for example `blocks.0`.
        argument: Parameter name of its forward.
        stream: Which token stream it carries (`video`, `text`); streams have lengths of their own.
        dim: Tensor dimension of the sequence.
    """

    module: str
    argument: str
    stream: str
    dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitOutput:
    """Split every tensor that a module returns (rotary embeddings), `dims[i]` for the i-th."""

    module: str
    stream: str
    dims: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitCount:
    """Bring a number of a stream's first tokens down to those of them that this rank holds.

    Attributes:
        modules: Regular expression that fully matches the names of the modules that are given it.
        argument: Parameter name of their forward.
        stream: The stream, which is cut before the first of these modules runs.
    """

    modules: str
    argument: str
    stream: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GatherOutput:
    """Gather a module's output back to the whole sequence."""

    module: str
    stream: str
    dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceLayout:
    """Everything the runtime has to know to run a model on a part of its sequence.

    Attributes:
        split_inputs: Where the sequence is cut.
        split_outputs: What else follows the tokens.
        split_counts: Which numbers of tokens follow them.
        gather: Where it is put together again.
        self_attention: Regular expression that fully matches the names of the modules in which
            tokens attend to the whole sequence.
        blocks: Regular expression that fully matches the names of the transformer blocks, which
            the model runs in the order of their registration; the first ones may be recomputed.
        streams: Order of the streams in joint attention; one entry for cross-attention models.
    """

    split_inputs: tuple[SplitInput, ...]
    split_outputs: tuple[SplitOutput, ...]
    gather: GatherOutput
    self_attention: str
    blocks: str
    streams: tuple[str, ...]
    split_counts: tuple[SplitCount, ...] = ()
