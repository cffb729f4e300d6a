"""Texts that generated kernels call: whole tiles of matrix products."""
