"""Scheduling: a program of nests into a plan of kernels, calls and memory; `stage.py` has its passes in order."""
