"""Scheduling: a program of nests into a plan of kernels, calls and memory.

dce → inline → predicate → dce → fuse → kernels and memory
"""
