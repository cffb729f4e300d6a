"""Choices by measurement: candidates are built, timed in a process of their own, recorded, and ranked."""
