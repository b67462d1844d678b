"""Systems that choose their own batches, compared over an epoch of clips."""
