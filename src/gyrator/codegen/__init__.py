"""Printing: a plan as source text. Nothing is decided here."""
