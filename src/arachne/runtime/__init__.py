"""Runs placed plans on torch.distributed, with exact gradients."""
