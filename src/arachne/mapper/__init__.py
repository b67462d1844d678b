"""Puts the slots of a plan on the ranks of a cluster."""
