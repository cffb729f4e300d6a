"""Every lowering by operator overload. An overload that stands in no family becomes an extern call."""

from gyrator.lowering import creation, extern, gathers, joins, pointwise, pooling, reductions, sampling, scatters, views
from gyrator.lowering.family import Family

MODULES = (creation, extern, gathers, joins, pointwise, pooling, reductions, sampling, scatters, views)
"""The families."""

LOWERINGS: Family = {op: row for module in MODULES for op, row in module.LOWERINGS.items()}
"""All of them; no operator stands in two families."""
