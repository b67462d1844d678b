"""What work costs: FLOPs, memory, collectives, and a calibrated time model."""
