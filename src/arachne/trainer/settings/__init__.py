"""The sections of a run file, one frozen dataclass per file."""
