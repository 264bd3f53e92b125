"""The kernels that no plan holds: they end, count and guard what a captured sequence does.

They have the parameters of every kernel: `stop`, the first unit, the number of units, then addresses.
"""

from __future__ import annotations

BEGIN, END, COUNT, COPY = "paren_begin", "paren_end", "paren_count", "paren_copy"
NAMES = (BEGIN, END, COUNT, COPY)
COPY_THREADS = 256
COPY_BLOCKS = 4096  # at most: each thread goes on where another ends

_HEAD = 'extern "C" __global__ void {name}(const int *stop, long long first, long long units, {parameters})'

BUILTIN = f"""
{_HEAD.format(name=BEGIN, parameters="int *ended, long long *count")} {{
  *ended = 0;
  *count = 0;
}}

{_HEAD.format(name=END, parameters="int *ended, const int *flag")} {{
  if (*flag != 0) *ended = 1;
}}

{_HEAD.format(name=COUNT, parameters="long long *count")} {{
  if (*stop == 0) *count += 1;
}}

struct alignas(16) paren_sixteen {{ unsigned int word[4]; }};

{_HEAD.format(name=COPY, parameters="const unsigned char *source, unsigned char *target")} {{
  if (stop && *stop != 0) return;
  const long long each = (long long)gridDim.x * blockDim.x;
  const long long own = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  const bool wide = (((unsigned long long)source | (unsigned long long)target) & 15) == 0;
  const long long whole = wide ? units / 16 : 0;
  for (long long i = own; i < whole; i += each)
    ((paren_sixteen *)target)[i] = ((const paren_sixteen *)source)[i];
  for (long long i = 16 * whole + own; i < units; i += each) target[i] = source[i];
}}
"""
