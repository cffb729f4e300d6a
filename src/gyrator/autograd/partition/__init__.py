"""Partitioning of a joint graph: what forward saves, what backward computes again."""

from gyrator.autograd.partition.min_cut import min_cut, min_cut_with_budget
from gyrator.autograd.partition.plan import JointGraph, Partition, PartitionFunction, save_all
from gyrator.autograd.partition.split import Halves, inference_graph, split

__all__ = [
    "Halves",
    "JointGraph",
    "Partition",
    "PartitionFunction",
    "inference_graph",
    "min_cut",
    "min_cut_with_budget",
    "save_all",
    "split",
]
