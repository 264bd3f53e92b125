"""What stands once before the kernels of a module: wide accesses, reductions of a group, scalar functions."""

from __future__ import annotations

from paren.codegen.cuda.functions import definitions
from paren.codegen.cuda.spelling import spell

# The processor's conversions to short floats round to nearest even and keep subnormals; a NaN becomes the same one
# whatever its payload. An emulation defines these functions itself.
DEVICE = r"""
#ifndef PAREN_EMULATION
static __device__ __forceinline__ unsigned paren_pair_bfloat16(float low, float high) {
  unsigned pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
static __device__ __forceinline__ unsigned paren_pair_float16(float low, float high) {
  unsigned pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
static __device__ __forceinline__ float paren_widen_float16(unsigned short half) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
  return value;
}
// The lesser and the greater of two floats; no number if one is none.
static __device__ __forceinline__ float paren_lesser(float a, float b) {
  float least;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(least) : "f"(a), "f"(b));
  return least;
}
static __device__ __forceinline__ float paren_greater(float a, float b) {
  float most;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(most) : "f"(a), "f"(b));
  return most;
}
#define PAREN_ALIGNED(pointer, bytes)
#endif
"""

ACCESS = r"""
static __device__ __forceinline__ float paren_widen_bfloat16(unsigned short half) {
  return __int_as_float((int)((unsigned)half << 16));
}

// The bits of a float that is rounded already.
static __device__ __forceinline__ unsigned short paren_short_bfloat16(float value) {
  return (unsigned short)((unsigned)__float_as_int(value) >> 16);
}

static __device__ __forceinline__ unsigned short paren_short_float16(float value) {
  return (unsigned short)paren_pair_float16(value, 0.0f);
}

static __device__ __forceinline__ float paren_round_bfloat16(float value) {
  return __int_as_float((int)(paren_pair_bfloat16(0.0f, value) & 0xffff0000u));
}

static __device__ __forceinline__ float paren_round_float16(float value) {
  return paren_widen_float16(paren_short_float16(value));
}

static __device__ __forceinline__ int paren_turned(int value, int by) {
  return (int)(((unsigned)value << by) | ((unsigned)value >> (32 - by)));
}

// An integer as an index from 0 to `last`.
template <typename I> static __device__ __forceinline__ I paren_clamped(I value, I last) {
  return value < 0 ? 0 : value > last ? last : value;
}

template <typename I> struct paren_range;
template <> struct paren_range<int> {
  static constexpr double below = -2147483649.0, above = 2147483648.0;
  static constexpr int low = -2147483647 - 1, high = 2147483647;
};
template <> struct paren_range<unsigned> {
  static constexpr double below = -1.0, above = 4294967296.0;
  static constexpr unsigned low = 0, high = 4294967295u;
};
template <> struct paren_range<unsigned char> {
  static constexpr double below = -1.0, above = 256.0;
  static constexpr unsigned char low = 0, high = 255;
};
template <> struct paren_range<long long> {
  static constexpr double below = -9223372036854775808.0, above = 9223372036854775808.0;
  static constexpr long long low = -9223372036854775807ll - 1, high = 9223372036854775807ll;
};

// The whole number towards zero, or the nearest bound; 0 for what is no number.
template <typename I> static __device__ __forceinline__ I paren_saturated(double value) {
  if (value != value) return 0;
  if (value <= paren_range<I>::below) return paren_range<I>::low;
  if (value >= paren_range<I>::above) return paren_range<I>::high;
  return (I)value;
}

template <int BYTES> struct paren_words;
template <> struct paren_words<16> { typedef uint4 type; };
template <> struct paren_words<8> { typedef uint2 type; };
template <> struct paren_words<4> { typedef unsigned type; };
template <> struct paren_words<2> { typedef unsigned short type; };
template <> struct paren_words<1> { typedef unsigned char type; };

// N elements side by side, moved by at most 16 bytes at once.
template <int N, typename M> static __device__ __forceinline__ void paren_get(M *to, const M *from) {
  constexpr int bytes = N * sizeof(M), piece = bytes < 16 ? bytes : 16, each = piece / sizeof(M);
  typedef typename paren_words<piece>::type Words;
  PAREN_ALIGNED(from, piece);
#pragma unroll
  for (int k = 0; k < bytes / piece; k++) {
    union { Words words; M elements[each]; } moved;
    moved.words = ((const Words *)from)[k];
#pragma unroll
    for (int i = 0; i < each; i++) to[k * each + i] = moved.elements[i];
  }
}

template <int N, typename M> static __device__ __forceinline__ void paren_put(M *to, const M *from) {
  constexpr int bytes = N * sizeof(M), piece = bytes < 16 ? bytes : 16, each = piece / sizeof(M);
  typedef typename paren_words<piece>::type Words;
  PAREN_ALIGNED(to, piece);
#pragma unroll
  for (int k = 0; k < bytes / piece; k++) {
    union { Words words; M elements[each]; } moved;
#pragma unroll
    for (int i = 0; i < each; i++) moved.elements[i] = from[k * each + i];
    ((Words *)to)[k] = moved.words;
  }
}

template <int N> static __device__ __forceinline__ void paren_get_bfloat16(float *to, const unsigned short *from) {
  unsigned pairs[N / 2];
  paren_get<N / 2>(pairs, (const unsigned *)from);
#pragma unroll
  for (int i = 0; i < N / 2; i++) {
    to[2 * i] = __int_as_float((int)(pairs[i] << 16));
    to[2 * i + 1] = __int_as_float((int)(pairs[i] & 0xffff0000u));
  }
}

template <int N> static __device__ __forceinline__ void paren_get_float16(float *to, const unsigned short *from) {
  unsigned pairs[N / 2];
  paren_get<N / 2>(pairs, (const unsigned *)from);
#pragma unroll
  for (int i = 0; i < N / 2; i++) {
    to[2 * i] = paren_widen_float16((unsigned short)pairs[i]);
    to[2 * i + 1] = paren_widen_float16((unsigned short)(pairs[i] >> 16));
  }
}

// Floats rounded as they are stored.
template <int N> static __device__ __forceinline__ void paren_put_bfloat16(unsigned short *to, const float *from) {
  unsigned pairs[N / 2];
#pragma unroll
  for (int i = 0; i < N / 2; i++) pairs[i] = paren_pair_bfloat16(from[2 * i], from[2 * i + 1]);
  paren_put<N / 2>((unsigned *)to, pairs);
}

template <int N> static __device__ __forceinline__ void paren_put_float16(unsigned short *to, const float *from) {
  unsigned pairs[N / 2];
#pragma unroll
  for (int i = 0; i < N / 2; i++) pairs[i] = paren_pair_float16(from[2 * i], from[2 * i + 1]);
  paren_put<N / 2>((unsigned *)to, pairs);
}

template <int N> static __device__ __forceinline__ void paren_get_flags(bool *to, const unsigned char *from) {
  unsigned char bytes[N];
  paren_get<N>(bytes, from);
#pragma unroll
  for (int i = 0; i < N; i++) to[i] = bytes[i] != 0;
}

template <int N> static __device__ __forceinline__ void paren_put_flags(unsigned char *to, const bool *from) {
  unsigned char bytes[N];
#pragma unroll
  for (int i = 0; i < N; i++) bytes[i] = from[i];
  paren_put<N>(to, bytes);
}
"""

REDUCTIONS = r"""
// What a reduction combines: two values in fixed order of the group's threads. C is the type that orders values.
template <typename C> struct paren_add {
  template <typename T> static __device__ __forceinline__ T of(T a, T b) { return (T)((C)a + (C)b); }
};
template <typename C> struct paren_most {
  template <typename T> static __device__ __forceinline__ T of(T a, T b) {
    return ((C)a > (C)b) | (a != a) ? a : b;
  }
};
template <> struct paren_most<float> {
  static __device__ __forceinline__ float of(float a, float b) { return paren_greater(a, b); }
};
template <typename C> struct paren_least {
  template <typename T> static __device__ __forceinline__ T of(T a, T b) {
    return ((C)a < (C)b) | (a != a) ? a : b;
  }
};

template <> struct paren_least<float> {
  static __device__ __forceinline__ float of(float a, float b) { return paren_lesser(a, b); }
};

template <typename T> struct paren_place { T value; int position; };

// The first extreme value, or the first that is no number.
template <typename C> struct paren_first_most {
  template <typename P> static __device__ __forceinline__ P of(P a, P b) {
    const bool lost = a.value != a.value, gone = b.value != b.value;
    const bool equal = lost == gone && (lost || a.value == b.value);
    const bool beyond = lost == gone ? !lost && (C)b.value > (C)a.value : gone;
    return beyond || (equal && b.position < a.position) ? b : a;
  }
};
template <typename C> struct paren_first_least {
  template <typename P> static __device__ __forceinline__ P of(P a, P b) {
    const bool lost = a.value != a.value, gone = b.value != b.value;
    const bool equal = lost == gone && (lost || a.value == b.value);
    const bool beyond = lost == gone ? !lost && (C)b.value < (C)a.value : gone;
    return beyond || (equal && b.position < a.position) ? b : a;
  }
};

template <typename T> static __device__ __forceinline__ T paren_other(T value, int by) {
  return __shfl_xor_sync(0xffffffffu, value, by);
}
static __device__ __forceinline__ bool paren_other(bool value, int by) {
  return __shfl_xor_sync(0xffffffffu, (int)value, by) != 0;
}
static __device__ __forceinline__ unsigned char paren_other(unsigned char value, int by) {
  return (unsigned char)__shfl_xor_sync(0xffffffffu, (int)value, by);
}
template <typename T> static __device__ __forceinline__ paren_place<T> paren_other(paren_place<T> value, int by) {
  paren_place<T> other;
  other.value = paren_other(value.value, by);
  other.position = paren_other(value.position, by);
  return other;
}

// Combines the values of N neighbouring threads of a warp; all of them get the result.
template <typename F, int N, typename T> static __device__ __forceinline__ T paren_group(T value) {
#pragma unroll
  for (int by = N / 2; by > 0; by /= 2) value = F::of(value, paren_other(value, by));
  return value;
}

// Combines N values of one thread, as a tree.
template <typename F, int N, typename T> static __device__ __forceinline__ T paren_folded(const T *values) {
  T left[N];
#pragma unroll
  for (int i = 0; i < N; i++) left[i] = values[i];
#pragma unroll
  for (int by = 1; by < N; by *= 2) {
#pragma unroll
    for (int i = 0; i + by < N; i += 2 * by) left[i] = F::of(left[i], left[i + by]);
  }
  return left[0];
}
"""

PRELUDE = "\n".join([DEVICE, ACCESS, *map(spell, definitions().splitlines()), REDUCTIONS])
