"""Random programs with views, mutation, aliasing and backward, compared with eager.

``operations`` lists the statements that may be drawn, ``wider`` more of them, ``programs`` draws whole programs,
``harness`` compiles and compares them, ``shrink`` makes a failing one small. ``python -m tests.fuzz --help`` runs it.
"""
