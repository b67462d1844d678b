"""From a run file to a trained model: configuration, step, loop, checkpoint."""
