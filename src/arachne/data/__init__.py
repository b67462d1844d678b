"""From files on disk to the latents of a step: probe, shape, decode, cache, sample, load."""
