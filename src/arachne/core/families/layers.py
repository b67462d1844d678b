"""Sizes of layers that several families are made of."""


def linear(inputs: int, outputs: int) -> int:
    """Parameters of a linear layer with bias, or of a convolution that patches do not overlap."""
    return inputs * outputs + outputs


def two_layers(inputs: int, inner: int, outputs: int) -> int:
    """Parameters of two linear layers with biases: a feed-forward layer, or an embedder."""
    return linear(inputs, inner) + linear(inner, outputs)
