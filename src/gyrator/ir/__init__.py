"""The compiler's intermediate representation: index algebra, value expressions, programs of nests, loop trees."""
