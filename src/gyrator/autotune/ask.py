"""Questions of a schedule, answered by measurement."""

from functools import partial
from math import prod

from gyrator.autotune.candidates import Candidate
from gyrator.autotune.parts import canonical_text
from gyrator.autotune.tuner import Tuner
from gyrator.ir.program import Extern
from gyrator.metrics.kernels import count_of
from gyrator.schedule.products import Alternative, Ask, Question, product_of


def asking(tuner: Tuner) -> Ask:
    """What answers a schedule's questions: alternatives become programs of their own, timed on random inputs."""
    builder = tuner.builder

    def ask(question: Question) -> tuple[Alternative, ...]:
        part = question.program
        plain = max(question.alternatives, key=lambda a: len(a.units))  # nothing is fused with the product
        candidates = [
            Candidate(
                a.name, a.backend, "", dict(a.parameters), partial(builder.start_units, part, a.units), a is plain
            )
            for a in question.alternatives
        ]
        dims = [n for i in part.inputs if i.value is not None for n in (*i.value.shape, *i.value.strides)]
        sizes = sorted({(size.name, builder.hints.get(size, 0)) for n in dims for size in n.sizes()})
        products = [p for node in part.nodes if isinstance(node, Extern) and (p := product_of(node)) is not None]
        work = [prod(count_of(n, builder.hints) for n in (*p.out.shape, p.left.shape[-1])) for p in products]
        ranked = tuner.rank(question.title, f"{canonical_text(part)}\n{sizes}", sum(work) or 1, candidates)
        of = {alternative.name: alternative for alternative in question.alternatives}
        return tuple(of[candidate.name] for candidate, _ in ranked)

    return ask
