"""Joint forward and backward graphs, decompositions and partitioning: torch-level graphs in, compiled callables out.

    gm, example_inputs ──joint trace──▶ ATen ──functionalise, decompose──▶ joint graph ──partition──▶ forward, backward

See docs/autograd.md.
"""

from gyrator.autograd.decompositions import decomposition_table
from gyrator.autograd.interface import Compiled, Compiler, GraphInfo, Update, interpret
from gyrator.autograd.torch_aot import aot_compile

__all__ = ["Compiled", "Compiler", "GraphInfo", "Update", "aot_compile", "decomposition_table", "interpret"]
