"""Partitioning of a joint graph: what forward saves, what backward computes again."""
