"""The schedule stage: its passes in order."""

from dataclasses import dataclass, replace
from functools import partial

from gyrator.config import Config
from gyrator.ir.check import PREDICATED, SCHEDULED, check_kernel, check_program
from gyrator.ir.program import Extern, Nest, Program, map_nests
from gyrator.ir.simplify import Rule, simplifier, simplify
from gyrator.ir.text import program_text
from gyrator.ir.tree import Attend
from gyrator.ir.tree import Config as Blocks
from gyrator.passes import Pass, run_passes
from gyrator.schedule.attention import attention_unit
from gyrator.schedule.check_plan import check_plan
from gyrator.schedule.choose import choose_products
from gyrator.schedule.cpu_attention import cpu_ways
from gyrator.schedule.cpu_gemm import CPP, Cpu, Packing
from gyrator.schedule.cpu_linear import add_biases_later
from gyrator.schedule.dce import fill_empty, remove_dead
from gyrator.schedule.fuse import Decision, Slower, fuse
from gyrator.schedule.gpu import Gpu
from gyrator.schedule.gpu_attention import gpu_ways
from gyrator.schedule.gpu_combo import combine
from gyrator.schedule.gpu_gemm import shown_unpadded
from gyrator.schedule.gpu_reductions import online_softmax, split_on_gpu
from gyrator.schedule.inline import inline
from gyrator.schedule.join import lay_parts
from gyrator.schedule.memory import order_products, plan_memory
from gyrator.schedule.narrow import narrow_places
from gyrator.schedule.overlay import overlay
from gyrator.schedule.pad import pad_rows
from gyrator.schedule.plan import Plan
from gyrator.schedule.predicate import predicate
from gyrator.schedule.products import Ask, Unit
from gyrator.schedule.reuse import reuse
from gyrator.schedule.scatter import scatter_to_sums, scatters_to_selects
from gyrator.schedule.split import split_reductions
from gyrator.schedule.windows import unroll_windows
from gyrator.session import Count, Session


@dataclass(frozen=True, slots=True)
class Scheduled:
    """The plan, the program it was made from (after all passes on programs), its nests as groups, its calls and
    templates in the plan's order, every decision about fusion, and constants to be packed."""

    plan: Plan
    program: Program
    units: tuple[Unit, ...]
    decisions: tuple[Decision, ...]
    packings: tuple[Packing, ...]


def program_passes(rule: Rule, session: Session, gpu: Gpu | None) -> tuple[Pass[Program], ...]:
    """What happens to a program before its nests are grouped."""
    config = session.config
    as_called = gpu is not None or config.max_autotune or config.numerics == "eager"
    return (
        Pass("dce", remove_dead, check_program),
        Pass("fill empty", fill_empty, check_program),
        Pass("simplify", lambda p: simplify(p, rule), check_program),
        # before inlining, which removes the constants it looks for
        Pass("scatters to selects", scatters_to_selects, check_program),
        *(() if as_called else (Pass("biases", add_biases_later, check_program),)),
        # before masks are pushed down: a producer read under a mask takes the mask with it
        *((Pass("inline", lambda p: inline(p, rule), check_program),) if config.inline else ()),
        *((Pass("lay parts", lay_parts, check_program),) if config.inplace else ()),
        Pass("unroll windows", unroll_windows, check_program),
        *((Pass("inline windows", lambda p: inline(p, rule, smaller=True), check_program),) if config.inline else ()),
        *(() if gpu is None else _passes_on_gpu(gpu, session)),
        Pass("split reductions", split_reductions, check_program),
        Pass("predicate", lambda p: predicate(p, rule), lambda p: check_program(p, PREDICATED)),
        Pass("narrow places", narrow_places, lambda p: check_program(p, PREDICATED)),
        Pass("dce again", remove_dead, lambda p: check_program(p, SCHEDULED)),
    )


def _passes_on_gpu(gpu: Gpu, session: Session) -> tuple[Pass[Program], ...]:
    config = session.config

    def pad(program: Program) -> Program:
        unpadded = shown_unpadded(program, gpu) if "triton" in config.gemm_backends else ()
        return pad_rows(program, session.counters, everywhere=config.pad_strides, unpadded=unpadded)

    return (
        Pass("scatters to sums", partial(map_nests, change=scatter_to_sums), check_program),
        Pass("online softmax", lambda p: online_softmax(p, gpu), check_program),
        Pass("split on GPU", lambda p: split_on_gpu(p, gpu), check_program),
        Pass("pad rows", pad, check_program),
    )


def _ways(attend: Attend, config: Config, gpu: Gpu | None, cpu: Cpu | None) -> tuple[str, tuple[Blocks, ...]]:
    """How to compute a call of attention: on a CPU the library's own only if templates may replace that."""
    if attend.operands[0].value.device.type == "cuda":
        return ("", ()) if gpu is None or attend.natural else gpu_ways(attend, gpu, tune=config.max_autotune)
    ours = not attend.natural or (CPP in config.gemm_backends and config.numerics != "eager")
    return cpu_ways(attend, cpu) if cpu is not None and ours else ("", ())


def schedule(
    program: Program, session: Session, gpu: Gpu | None = None, slower: Slower | None = None, ask: Ask | None = None,
    cpu: Cpu | None = None, *, overlays: bool = False, freed: int = 0,
) -> Scheduled:  # fmt: skip
    """Program → plan: passes on the program, fusion, kernels, memory. ``gpu`` is what nests on "cuda" run on;
    ``slower`` may refuse fusions; ``ask`` times ways to compute matrix products, for which ``cpu`` may have templates;
    ``overlays`` are for graphs whose memory no other graph takes after them, as backward does forward's, whose first
    ``freed`` inputs are forward's alone.

    Raises: InternalCheckError if a pass breaks its spec (checked as ``session.config.check`` says)."""
    config = session.config
    rule = simplifier(exact_rounding=config.numerics == "eager")
    session.counters.add(Count.NESTS_BEFORE_FUSION, sum(isinstance(node, Nest) for node in program.nodes))
    program = run_passes(program, program_passes(rule, session, gpu), session, text=program_text)
    with session.stage("fuse"):
        steps, decisions = fuse(program, config.max_fused_nodes if config.fusion else 1, slower, gpu)
    with session.stage("choose products"):
        units, packings = choose_products(steps, program, ask, config, gpu, cpu)
        program = replace(program, constants=(*program.constants, *(p.value for p in packings)))
        ways = partial(_ways, config=config, gpu=gpu, cpu=cpu)
        made = {node.out[0]: node for node in program.nodes if isinstance(node, Nest)}
        units = tuple(attention_unit(u, rule, ways, made) if isinstance(u, Extern) else u for u in units)
    with session.stage("kernels and memory"):
        units = order_products(units, program, freed)
        overlays = overlays and config.inplace and gpu is None
        plan = plan_memory(program, units, rule, in_place=config.inplace, gpu=gpu, overlays=overlays)
        plan = combine(plan) if gpu is not None and config.combo_kernels else plan
        plan = overlay(plan) if overlays else plan
        plan = reuse(plan) if gpu is not None and config.inplace else plan
    if config.check != "off":
        with session.stage("check plan"):
            for kernel in plan.kernels:
                check_kernel(kernel)
            check_plan(plan)
    session.counters.add(Count.NESTS_AFTER_FUSION, sum(not isinstance(unit, Extern) for unit in units))
    return Scheduled(plan, program, units, decisions, packings)
