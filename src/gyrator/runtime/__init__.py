"""Running: toolchain, kernel libraries, launching, memory, and the wrapper programs that use them."""
