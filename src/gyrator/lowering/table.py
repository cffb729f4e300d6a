"""Every lowering by operator overload. An overload that stands in no family becomes an extern call."""

from types import MappingProxyType

from gyrator.lowering import creation, extern, gathers, joins, pointwise, pooling, reductions, sampling, scatters, views
from gyrator.lowering.family import Family

MODULES = (creation, extern, gathers, joins, pointwise, pooling, reductions, sampling, scatters, views)
"""The families."""

LOWERINGS: Family = MappingProxyType({op: row for module in MODULES for op, row in module.LOWERINGS.items()})
"""All of them; no operator stands in two families."""

VIEWS = frozenset(views.LOWERINGS)
"""Those that compute nothing and so take any dtype."""

RANDOM = frozenset(creation.RANDOM)
"""Those that draw random numbers."""
