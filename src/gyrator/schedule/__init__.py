"""Scheduling: programs of nests into plans of kernels, calls and memory."""
