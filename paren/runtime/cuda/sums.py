"""The kernels that add what cards sent each other, in the order of the ranks: as `paren.parallel.exchange` says it.

They have the parameters of every kernel: `stop`, the first unit, the number of units (elements here), then addresses;
numbers stand among those as words of 8 bytes. Of `count` ranks this one has the number `place`; what the others sent
lies row after row in `others`. `weight` is the bits of a float, and is not used where nothing `counts`.
"""

from __future__ import annotations

ADD, ADD_TREE, ROUND, ADD_ROUNDED, WIDEN = (
    "paren_sum_add",
    "paren_sum_add_tree",
    "paren_sum_round",
    "paren_sum_add_rounded",
    "paren_sum_widen",
)
NAMES = (ADD, ADD_TREE, ROUND, ADD_ROUNDED, WIDEN)
THREADS = 256
BLOCKS = 512  # at most: each thread goes on where another ends, and the rest of the card goes on computing

_HEAD = 'extern "C" __global__ void {name}(const int *stop, long long first, long long units, {parameters})'
_EACH = """const long long each = (long long)gridDim.x * blockDim.x;
  for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < units; i += each)"""
_ROW = "others[(rank - (rank > place)) * units + i]"
_WEIGHED = "long long weight, long long counts"

SUMS = f"""
static __device__ unsigned short paren_sum_short(float x) {{
  const unsigned bits = (unsigned)__float_as_int(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return (unsigned short)(bits >> 16 | 0x40u);
  return (unsigned short)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}}

static __device__ float paren_sum_wide(unsigned short x) {{
  return __int_as_float((int)((unsigned)x << 16));
}}

{_HEAD.format(name=ADD, parameters="float *own, const float *others, long long count, long long place")} {{
  {_EACH} {{
    const float mine = own[i];
    float total = place == 0 ? mine : others[i];
    for (long long rank = 1; rank < count; rank++)
      total += rank == place ? mine : {_ROW};
    own[i] = total;
  }}
}}

{_HEAD.format(name=ADD_TREE, parameters="float *own, const float *others, long long count, long long place")} {{
  {_EACH} {{
    float held[32];
    int depth = 0;
    for (long long rank = 0; rank < count; rank++) {{
      float value = rank == place ? own[i] : {_ROW};
      for (long long leaves = rank; leaves & 1; leaves >>= 1) value = held[--depth] + value;
      held[depth++] = value;
    }}
    float total = held[--depth];
    while (depth > 0) total = held[--depth] + total;
    own[i] = total;
  }}
}}

{
    _HEAD.format(
        name=ROUND,
        parameters=f"const float *own, const float *carried, float *rest, unsigned short *rounded, {_WEIGHED}",
    )
} {{
  {_EACH} {{
    float value = own[i];
    if (counts) value += carried[i] * __int_as_float((int)weight);
    const unsigned short bits = paren_sum_short(value);
    if (counts) rest[i] = value - paren_sum_wide(bits);
    rounded[i] = bits;
  }}
}}

{
    _HEAD.format(
        name=ADD_ROUNDED,
        parameters="unsigned short *own, const unsigned short *others, float *rest, long long count, "
        "long long place, long long counts",
    )
} {{
  {_EACH} {{
    float total = paren_sum_wide(place == 0 ? own[i] : others[i]);
    for (long long rank = 1; rank < count; rank++)
      total += paren_sum_wide(rank == place ? own[i] : {_ROW});
    const unsigned short bits = paren_sum_short(total);
    if (counts) rest[i] += total - paren_sum_wide(bits);
    own[i] = bits;
  }}
}}

{_HEAD.format(name=WIDEN, parameters=f"const unsigned short *rounded, float *own, float *rest, {_WEIGHED}")} {{
  {_EACH} {{
    own[i] = paren_sum_wide(rounded[i]);
    if (counts) {{
      const float quotient = rest[i] / __int_as_float((int)weight);
      rest[i] = quotient - quotient == 0.0f ? quotient : 0.0f;
    }}
  }}
}}
"""
