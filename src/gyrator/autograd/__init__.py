"""Joint forward and backward graphs, decompositions and partitioning: torch-level graphs in, compiled callables out.

    gm, inputs ──joint trace──▶ ATen ──decompose──▶ joint graph ──partition──▶ forward, backward ──▶ shell

`aot.py` is the whole as one straight line; docs/autograd.md tells how it works."""

from gyrator.autograd.aot import aot_compile as aot_compile
from gyrator.autograd.decompositions import decomposition_table as decomposition_table
from gyrator.autograd.interface import Compiled as Compiled
from gyrator.autograd.interface import Compiler as Compiler
from gyrator.autograd.interface import GraphInfo as GraphInfo
from gyrator.autograd.interface import Update as Update
from gyrator.autograd.interface import interpret as interpret
from gyrator.autograd.partition.min_cut import min_cut as min_cut
from gyrator.autograd.partition.min_cut import min_cut_with_budget as min_cut_with_budget
from gyrator.autograd.partition.plan import save_all as save_all
