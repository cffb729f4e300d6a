"""Every lowering by operator overload. An overload that stands in no family becomes an extern call."""

from types import MappingProxyType

from torch._ops import OpOverload

from gyrator.lowering import creation, extern, gathers, joins, pointwise, pooling, reductions, sampling, scatters, views
from gyrator.lowering.family import Family, Lowering

_MODULES = (creation, extern, gathers, joins, pointwise, pooling, reductions, sampling, scatters, views)


def _merged() -> Family:
    table: dict[OpOverload, Lowering] = {}
    for family in [module.LOWERINGS for module in _MODULES]:
        twice = table.keys() & family.keys()
        if twice:
            raise ImportError(f"two lowerings of {', '.join(map(str, twice))}")
        table.update(family)
    return MappingProxyType(table)


LOWERINGS = _merged()
"""All of them."""

VIEWS = frozenset(views.LOWERINGS)
"""Those that compute nothing and so take any dtype."""

RANDOM = frozenset(creation.RANDOM)
"""Those that draw random numbers."""
