"""Which way to compute each matrix product: the library's call, or a template of ours with what follows it fused in.

    units                     the plain question            the question with what follows
    call mm                   mm         0.062 ms           mm, then relu           0.071 ms
    group relu            →   mm_0       0.063 ms       →   mm_0 with relu          0.064 ms
                              mm_1       0.070 ms           mm_1 with relu          0.072 ms

The best few templates of the first question stand in the second one, against the best way without fusion. What makes an
operand (:mod:`prologue`) is part of both, stored before the product or computed by the template."""

from collections.abc import Sequence
from dataclasses import replace

from gyrator.config import Config as Options
from gyrator.ir.expr import Value
from gyrator.ir.program import Extern, Input, Program, shown_values, views
from gyrator.ir.text import canonical_text
from gyrator.ir.tree import Config
from gyrator.ir.volume import at_most, volume
from gyrator.schedule.cpu_gemm import CPP, PANELS, Cpu, Packing, cpu_configs, faster_configs, few_rows, frozen
from gyrator.schedule.cpu_linear import linear_unary
from gyrator.schedule.gpu import Gpu
from gyrator.schedule.gpu_gemm import few_configs, gpu_configs, short_configs, unpadded
from gyrator.schedule.group import Group
from gyrator.schedule.products import Alternative, Ask, Product, Question, Templated, Unit, part_of, product_of, uses_of
from gyrator.schedule.prologue import is_cheap, of_few, producers, prologues
from gyrator.schedule.templated import product_group

FEW_EACH = 32
"""Most rows of groups, in the mean, that a template computes without a trial."""


def choose_products(
    units: Sequence[Unit], program: Program, ask: Ask | None, options: Options, gpu: Gpu | None, cpu: Cpu | None
) -> tuple[tuple[Unit, ...], tuple[Packing, ...]]:
    """``units`` with each product computed in the way that ``ask`` finds fastest. Equal questions are asked once.
    With them what constants they read in panels.

    Without ``ask``, which the option ``max_autotune`` provides, calls stay calls, but for what no library is fast at:
    rows that end anywhere, few rows with an operand not stored yet, groups of few, small ones, `faster_configs`."""
    if ask is None:
        with_gpu = gpu if "triton" in options.gemm_backends else None
        with_cpu = cpu if CPP in options.gemm_backends and gpu is None else None
        return _without_trial(units, program, with_gpu, with_cpu) if with_gpu or with_cpu else (tuple(units), ())
    chooser = _Chooser(list(units), program, ask, options, gpu, cpu)
    for call, product in [(u, p) for u in units if isinstance(u, Extern) and (p := product_of(u)) is not None]:
        chooser.choose(call, product)
    read = {value for unit in chooser.units for value in uses_of(unit)}
    return tuple(chooser.units), tuple(p for p in chooser.packings.values() if p.value in read)


def _without_trial(
    given: Sequence[Unit], program: Program, gpu: Gpu | None, cpu: Cpu | None
) -> tuple[tuple[Unit, ...], tuple[Packing, ...]]:
    """The units with products that no library is fast at by templates, with what follows; those that read an operand
    once, as they have few rows, compute it. With them what constants they read in panels."""
    packings: dict[Value, Packing] = {}
    units = [(gpu and isinstance(u, Extern) and unpadded(u, gpu)) or u for u in given]
    shown, read = shown_values(program), {value for unit in units for value in uses_of(unit)}
    made = producers(units, shown, on_gpu=gpu is not None)
    for call, product in [(u, p) for u in units if isinstance(u, Extern) and (p := product_of(u)) is not None]:
        found, rows = of_few(product, prologues(product, made, units)), at_most(product.shape[0])
        # groups of few rows: 0.54 to 0.76 of the library's time on an H200, for 256 each 1.01 to 1.03
        grouped = product.ends is not None and rows is not None and rows <= FEW_EACH * volume(product.ends.shape)
        grouped &= product.rows_in_groups
        if gpu is not None:
            configs = few_configs(product, gpu, found) if found or grouped else ()
            found = found if configs else ()
            ways = Templated(call, "tiled", configs or short_configs(product, gpu), prologue=found)
        else:
            assert cpu is not None
            few = grouped or any(x.dtype.itemsize == 1 for g in found for x in g.members[0].loads)
            configs = few_rows(product, cpu) if few else ()
            kept = product.ends is not None and product.out in shown  # not in the pool's memory: see OUT_VARIANTS
            configs, found = (configs, found) if configs or kept else (faster_configs(product, cpu), ())
            ways, packed = frozen(Templated(call, PANELS, configs, prologue=found), product.right, program, cpu)
            packings |= {p.value: p for p in packed}
        if ways.configs:
            group = _follower(units, call, product) if product.out in read else None
            _exchange(units, (*found, call, *(() if group is None else (group,))), (replace(ways, epilogue=group),))
    return tuple(units), tuple(packings.values())


class _Chooser:
    """Exchanges units one product at a time. Mutable, and private to one call of :func:`choose_products`."""

    def __init__(
        self, units: list[Unit], program: Program, ask: Ask, options: Options, gpu: Gpu | None, cpu: Cpu | None
    ) -> None:
        self.units, self._program, self._ask = units, program, ask
        self._options, self._gpu, self._cpu = options, gpu, cpu
        self._asked: dict[tuple[object, ...], tuple[str, ...]] = {}
        self.packings: dict[Value, Packing] = {}
        self._made = producers(units, shown_values(program), on_gpu=gpu is not None)

    def choose(self, call: Extern, product: Product) -> None:
        """Replace the call, and what makes its operands and follows it if they are fused."""
        templates = self._templates(call, product)
        library = Alternative(_op(call), "aten", (call,))
        plain = (*((library,) if "aten" in self._options.gemm_backends or not templates else ()), *templates)
        if plain == (library,) and {"aten", "subgraph"} & {*self._options.gemm_backends}:
            return
        group = _follower(self.units, call, product)
        linear = None if group is None else linear_unary(call, product, group, self._program)
        if group is not None and linear is not None:
            self._choose_linear(call, product, group, linear, templates)
            return
        found = prologues(product, self._made, self.units)
        title = _title(call, product) + " with prologue" * bool(found)
        ranked = self._ranked(title, (*found, call), _prologued(plain, product, found))
        if not ranked:
            return
        best = ranked[0]
        tried = [a for a in ranked if a.backend != "aten"][: self._options.max_epilogue_benchmarked_choices]
        if group is not None and tried:
            fused = tuple(_with_epilogue(a, group) for a in tried)
            apart = replace(best, name=f"{best.name}_then_epilogue", units=(*best.units, group))
            ranked = self._ranked(f"{title} with epilogue", (*found, call, group), (*fused, apart))
            if ranked and ranked[0] is not apart:
                _exchange(self.units, (*found, call, group), ranked[0].units)
                return
        _exchange(self.units, (*found, call), best.units)

    def _choose_linear(
        self, call: Extern, product: Product, group: Group, linear: Extern, templates: tuple[Alternative, ...]
    ) -> None:
        """A frozen layer: the library fuses as well, so that everything is asked at once."""
        library = Alternative("_linear_pointwise", "aten", (linear,))
        apart = Alternative(f"{_op(call)}_then_epilogue", "aten", (call, group))
        fused = tuple(_with_epilogue(a, group) for a in templates)
        offered = (*fused, *((library, apart) if "aten" in self._options.gemm_backends or not fused else ()))
        ranked = self._ranked(_title(call, product, "linear_unary"), (call, group), offered)
        if ranked:
            _exchange(self.units, (call, group), ranked[0].units)

    def _templates(self, call: Extern, product: Product) -> tuple[Alternative, ...]:
        backends, op = self._options.gemm_backends, _op(call)
        device = product.out.device.type
        if device == "cpu" and self._cpu is not None and CPP in backends:
            plain = [Templated(call, PANELS, (c,)) for c in cpu_configs(product, self._cpu)]
            made = [frozen(unit, product.right, self._program, self._cpu) for unit in plain]
            self.packings |= {p.value: p for _, packed in made for p in packed}
            return tuple(Alternative(f"cpp_{op}_{k}", CPP, (u,), u.configs[0].blocks) for k, (u, _) in enumerate(made))
        if device != "cuda" or self._gpu is None or "triton" not in backends:
            return ()
        units = [Templated(call, t, (c,)) for t, c in gpu_configs(product, self._gpu)]
        logged = [parameters(product, unit.configs[0]) for unit in units]
        return tuple(Alternative(f"triton_{op}_{k}", "triton", (u,), logged[k]) for k, u in enumerate(units))

    def _ranked(self, title: str, units: tuple[Unit, ...], ways: tuple[Alternative, ...]) -> tuple[Alternative, ...]:
        """What was answered to an equal question, else what is answered now."""
        key = canonical_text(ways[0].nodes), *((a.name, a.parameters) for a in ways)
        if key not in self._asked:
            part = part_of(self._program, units)
            read = {v for a in ways for u in a.units for v in uses_of(u)}
            packed = [p for p in self.packings.values() if p.value in read]
            at = {given.value: k for k, given in enumerate(part.inputs)}
            panels = tuple((k, at[p.source.value], *p.layout) for k, p in enumerate(packed, len(part.inputs)))
            part = replace(part, inputs=(*part.inputs, *(Input(p.value) for p in packed)))
            self._asked[key] = tuple(a.name for a in self._ask(Question(title, part, ways, panels)))
        by_name = {a.name: a for a in ways}
        return tuple(by_name[name] for name in self._asked[key])


def parameters(product: Product, config: Config) -> tuple[tuple[str, str | int | bool], ...]:
    """What the log says of a template: accumulator, block sizes, whether blocks divide K, stages, warps."""
    blocks = dict(config.blocks)
    k = product.left.shape[-1].value
    total = "tl.float32" if product.out.dtype.is_floating_point else "tl.int32"
    named: dict[str, str | int | bool] = {"ACC_TYPE": total, **blocks, "ALLOW_TF32": bool(blocks.get("ALLOW_TF32", 0))}
    named["EVEN_K"] = k is not None and k % (blocks.get("BLOCK_K", 1) * blocks.get("SPLIT_K", 1)) == 0
    return (*sorted(named.items()), ("num_stages", config.num_stages), ("num_warps", config.num_warps))


def _follower(units: Sequence[Unit], call: Extern, product: Product) -> Group | None:
    """The group that may become the product's epilogue: the first unit that reads it, over the same elements."""
    group = next((u for u in units[units.index(call) + 1 :] if product.out in uses_of(u)), None)
    return group if isinstance(group, Group) and product_group(product, group) is not None else None


def _exchange(units: list[Unit], old: Sequence[Unit], new: Sequence[Unit]) -> None:
    """Put ``new`` where the last of ``old`` is."""
    at = units.index(old[-1])
    units[at : at + 1] = [*new]
    for unit in old[:-1]:
        del units[next(k for k, u in enumerate(units) if u is unit)]


def _prologued(plain: tuple[Alternative, ...], product: Product, found: tuple[Group, ...]) -> tuple[Alternative, ...]:
    """The alternatives, each after the groups that make operands, then templates that compute these operands."""
    few, cheap = of_few(product, found), tuple(group for group in found if is_cheap(group.members[0].nest))
    ours = [(a, u) for a in plain for u in a.units if isinstance(u, Templated) and u.template in ("tiled", "panels")]
    able = [(a, u) for a, u in ours if not any("PACKED" in dict(c.blocks) for c in u.configs)]  # they load or cut them
    fused: list[Alternative] = []
    for some in (found, *([cheap] if 0 < len(cheap) < len(found) else [])):
        suffix = "_with_prologues" if len(some) > 1 else "_with_prologue"
        before = [group for group in found if all(group is not g for g in some)]
        fused += [replace(a, name=a.name + suffix, units=(*before, replace(u, prologue=some))) for a, u in able]
    apart = [replace(a, units=(*found, *a.units)) for a in plain if a.backend == "aten" or not (few and fused)]
    return (*apart, *fused) if found else plain


def _op(call: Extern) -> str:
    return call.op.removeprefix("aten.").removesuffix(".default")


def _with_epilogue(a: Alternative, group: Group) -> Alternative:
    return replace(a, units=tuple(replace(u, epilogue=group) if isinstance(u, Templated) else u for u in a.units))


def _title(call: Extern, product: Product, op: str = "") -> str:
    """``addmm(64x16, 16x32, 32)``, ``linear_unary(64x16, 32x16, 32)``."""
    shapes = [product.left.shape, product.right.shape[::-1] if op else product.right.shape]
    if product.window is not None:
        shapes = [product.window.images.shape, product.right.value.shape]
    if product.bias is not None:
        shapes.append(next(view.shape for view in views(call) if view.value is product.bias.value))
    return f"{op or _op(call)}({', '.join('x'.join(map(str, shape)) for shape in shapes)})"
