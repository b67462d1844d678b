"""The model interface, one file per family, and the encoders."""
