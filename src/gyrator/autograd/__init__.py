"""Joint forward and backward graphs, decompositions and partitioning: torch-level graphs in, compiled callables out.

    gm, inputs ──joint trace──▶ ATen ──decompose──▶ joint graph ──partition──▶ forward, backward ──▶ shell

`aot.py` is the whole as one straight line; docs/autograd.md tells how it works.
"""

from gyrator.autograd.aot import aot_compile
from gyrator.autograd.decompositions import decomposition_table
from gyrator.autograd.interface import Compiled, Compiler, GraphInfo, Update, interpret
from gyrator.autograd.partition.min_cut import min_cut, min_cut_with_budget
from gyrator.autograd.partition.plan import save_all

__all__ = [
    "Compiled",
    "Compiler",
    "GraphInfo",
    "Update",
    "aot_compile",
    "decomposition_table",
    "interpret",
    "min_cut",
    "min_cut_with_budget",
    "save_all",
]
