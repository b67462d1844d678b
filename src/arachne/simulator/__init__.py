"""Runs a placed plan on modelled hardware."""
