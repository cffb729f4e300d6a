"""The catalogue of everything gyrator raises or warns about. Each message says what happened, where (the user's file
and line, and the node with its neighbours when known), and what to try. `GyratorError` is abstract; every other class
is final and raised by at least one test."""

from abc import ABC
from collections.abc import Mapping
from difflib import get_close_matches
from textwrap import indent

from gyrator.origin import Origin


class GyratorWarning(UserWarning):
    """Something the user should know that does not stop a compile; said once for each text."""


class GyratorError(Exception, ABC):
    """Base of all errors: a message, the user's place, the node with its neighbours, and what to try. Programs of which
    one says that they are ``for_eager`` run uncompiled."""

    def __init__(
        self, message: str, *, where: Origin | None = None, node: str | None = None, hint: str | None = None,
        for_eager: bool = False,
    ) -> None:  # fmt: skip
        if type(self) is GyratorError:
            raise TypeError("GyratorError is abstract; raise one of its subclasses")
        self.message, self.where, self.node, self.hint, self.for_eager = message, where, node, hint, for_eager
        parts = [message]
        if where is not None:
            parts.append(f"  at: {where}" + (f" ({where.op})" if where.op else ""))
        if node:
            parts.append("  node: " + indent(node, "        ").lstrip())
        if hint:
            parts.append(f"  try: {hint}")
        super().__init__("\n".join(parts))


class UnknownOption(GyratorError):
    """An option or mode that does not exist. `valid` maps each name that does to its type."""

    def __init__(self, name: str, valid: Mapping[str, str], *, kind: str = "option", hint: str | None = None) -> None:
        close = get_close_matches(name, list(valid), n=1)
        listing = "\n".join(f"  {key}: {type_}" for key, type_ in valid.items())
        suggestion = hint or (f"did you mean {close[0]!r}?" if close else None)
        super().__init__(f"unknown {kind} {name!r}; valid {kind}s are\n{listing}", hint=suggestion)


class InvalidOption(GyratorError):
    """An option whose value has the wrong type or lies outside its range."""

    def __init__(self, name: str, value: object, expected: str, *, source: str = "options") -> None:
        hint = "docs/config.md lists every option with its type and default"
        super().__init__(f"option {name!r} must be {expected}, not {value!r} (from {source})", hint=hint)


class UnsupportedInput(GyratorError):
    """A tensor of a kind that gyrator does not compile: sparse, quantised, nested, a subclass. Names torch's path."""

    def __init__(self, what: str, *, hint: str | None = None, for_eager: bool = False) -> None:
        default = 'run this part with torch.compiler.disable, or with torch.compile(backend="eager")'
        super().__init__(f"{what} cannot be compiled", hint=hint or default, for_eager=for_eager)


class UnsupportedOperator(GyratorError):
    """An operator that can neither be lowered nor called as it is (for example one without a fake kernel)."""

    def __init__(
        self, op: str, reason: str, *, where: Origin | None = None, node: str | None = None, for_eager: bool = False
    ) -> None:
        hint = "register a fake kernel with torch.library.register_fake, or exclude it with torch.compiler.disable"
        what = f"operator {op} cannot be compiled: {reason}"
        super().__init__(what, where=where, node=node, hint=hint, for_eager=for_eager)


class IndexOutOfRange(GyratorError, IndexError, RuntimeError):
    """An index outside its dimension, found by a kernel. Eager raises IndexError or RuntimeError: this is both."""

    def __init__(self, index: int | None, size: int | None, *, where: Origin | None = None) -> None:
        what = "index out of range" if index is None else f"index {index} is out of bounds"
        super().__init__(what + ("" if size is None else f" with size {size}"), where=where)


class OutputMismatch(GyratorError, RuntimeError):
    """An operator returned a tensor or number that differs from what its fake kernel or `torch._check` promised."""

    def __init__(self, op: str, promised: str, got: str) -> None:
        hint = "what torch._check was told must hold; a custom operator's torch.library.register_fake must be right"
        super().__init__(f"{op} promised {promised} but returned {got}", hint=hint)


class ToolchainMissing(GyratorError):
    """A compiler, package or device that the requested path needs was not found."""

    def __init__(self, what: str, hint: str) -> None:
        super().__init__(f"{what} not found", hint=hint)


class DeviceUnsupported(GyratorError):
    """The GPU, its driver or Triton is missing or too old for the path that was asked for."""

    def __init__(self, found: str, needed: str, hint: str) -> None:
        super().__init__(f"{found}; {needed} is needed", hint=hint)
        self.found, self.needed = found, needed


class LaunchFailed(GyratorError):
    """The GPU's driver refused to load or launch a kernel, or an earlier kernel had failed."""

    def __init__(self, kernel: str, status: str) -> None:
        hint = "GPUs report late: with CUDA_LAUNCH_BLOCKING=1 the kernel at fault is named"
        super().__init__(f"{kernel} was not launched: {status}", hint=hint)


class KernelBuildError(GyratorError):
    """The compiler refused a generated kernel. A bug of gyrator, or of the toolchain."""

    def __init__(self, kernel: str, file: str, compiler_message: str, *, where: Origin | None = None) -> None:
        message = f"kernel {kernel} does not build\n  source: {file}\n{indent(compiler_message.strip(), '  | ')}"
        hint = "`python -m gyrator doctor` shows the toolchain; options={'fusion': False} may avoid it"
        super().__init__(message, where=where, hint=hint)
        self.kernel, self.file, self.compiler_message = kernel, file, compiler_message


class CacheCorrupt(GyratorError):
    """A cache entry whose digest does not match its content. The cache treats it as a miss, with one warning."""

    def __init__(self, path: str, reason: str) -> None:
        hint = "`python -m gyrator cache clear` removes all; libraries are not loaded from a folder mounted noexec"
        super().__init__(f"cache entry {path} is damaged: {reason}", hint=hint)


_OUR_BUG = "this is a bug of gyrator: please report it with the files that GYRATOR_DUMP=dir writes"


class InternalCheckError(GyratorError):
    """A pass broke a rule of the representation it leaves, or failed. Names the pass, the node and the user's line."""

    def __init__(self, pass_name: str, problem: str, *, where: Origin | None = None, node: str | None = None) -> None:
        message = f"internal check failed after pass {pass_name!r}: {problem}"
        super().__init__(message, where=where, node=node, hint=_OUR_BUG)
        self.pass_name, self.problem = pass_name, problem


class WrongResult(GyratorError):
    """With validate=True: a stage changed the answer on the same inputs. Names the first stage that did."""

    def __init__(self, stage: str, result: str, difference: str, *, where: Origin | None = None) -> None:
        super().__init__(f"stage {stage!r} changed {result}: {difference}", where=where, hint=_OUR_BUG)
        self.stage = stage
