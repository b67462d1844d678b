"""Arachne trains text-to-video diffusion transformers by cascades."""

__version__ = "0.1.0"
