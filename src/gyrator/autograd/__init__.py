"""Joint forward and backward graphs, decompositions and partitioning: torch-level graphs in, compiled callables out.

    gm, inputs ──joint trace──▶ ATen ──decompose──▶ joint graph ──partition──▶ forward, backward ──▶ shell

`aot.py` is the whole as one straight line; docs/autograd.md tells how it works.
"""
