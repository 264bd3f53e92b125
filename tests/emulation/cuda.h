// Executes CUDA C on the CPU: the blocks of a launch one after another, the threads of a block as fibers that give way
// to one another at barriers and shuffles. Stands before the text of kernels in place of what nvcc knows by itself.

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#define PAREN_EMULATION 1
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __syncwarp() emulated_warp_barrier(__LINE__)
#define __syncthreads() emulated_block_barrier(__LINE__)
#define PAREN_ALIGNED(pointer, bytes) \
  if ((unsigned long long)(pointer) % (bytes)) emulated_fail("an access that is not aligned")

struct uint2 { unsigned x, y; };
struct uint4 { unsigned x, y, z, w; };
struct Emulated3 { unsigned x, y, z; };

static Emulated3 threadIdx, blockIdx, blockDim, gridDim;

#ifdef EMULATED_CHECKS  // checks.h follows
#define __shared__ static __attribute__((section("emulated_shared")))
[[noreturn]] static void emulated_fail(const char *message);
static void emulated_begin(const void *top, bool waits);
static volatile bool emulated_failed;
static ucontext_t emulated_out;  // where a launch ends that failed
#else
#define __shared__ static
[[noreturn]] static void emulated_fail(const char *message) {
  fprintf(stderr, "emulation: %s, block %u, thread %u\n", message, blockIdx.x, threadIdx.x);
  abort();
}
#endif

template <typename To, typename From> static inline To emulated_cast(From from) {
  static_assert(sizeof(To) == sizeof(From), "sizes");
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}
static inline int __float_as_int(float x) { return emulated_cast<int>(x); }
static inline float __int_as_float(int x) { return emulated_cast<float>(x); }
static inline long long __double_as_longlong(double x) { return emulated_cast<long long>(x); }
static inline double __longlong_as_double(long long x) { return emulated_cast<double>(x); }

static inline unsigned emulated_half(float x) {
  const unsigned bits = (unsigned)__float_as_int(x);
  return x != x ? 0x7fffu : (bits + 0x7fffu + ((bits >> 16) & 1)) >> 16;
}
static inline unsigned paren_pair_bfloat16(float low, float high) {
  return emulated_half(high) << 16 | emulated_half(low);
}
static inline unsigned emulated_float16(float x) {
  return x != x ? 0x7fffu : (unsigned)emulated_cast<unsigned short>((_Float16)x);
}
static inline unsigned paren_pair_float16(float low, float high) {
  return emulated_float16(high) << 16 | emulated_float16(low);
}
static inline float paren_widen_float16(unsigned short half) { return (float)emulated_cast<_Float16>(half); }

static inline float paren_lesser(float a, float b) { return a != a || a < b ? a : b; }
static inline float paren_greater(float a, float b) { return a != a || a > b ? a : b; }

// Fibers ---------------------------------------------------------------------------------------------------------------

static const int EMULATED_MOST = 1024, EMULATED_STACK = 1 << 16, EMULATED_WARP = 32;

struct EmulatedThread {
  ucontext_t context;
  bool ended;
  int exchanges;  // shuffles and barriers of the warp that it has passed
};

static EmulatedThread emulated_threads[EMULATED_MOST];
static char *emulated_stacks;
static ucontext_t emulated_scheduler;
static void (*emulated_kernel)(void *);
static void *emulated_arguments;
static bool emulated_backwards;  // the order of the threads between barriers: none may show in results
static bool emulated_moved;  // whether a thread got on since the scheduler last began with the first one

struct EmulatedBarrier { int waiting, passed, site; };
static EmulatedBarrier emulated_block, emulated_warps[EMULATED_MOST / EMULATED_WARP];
static int emulated_running, emulated_running_in[EMULATED_MOST / EMULATED_WARP];
static int emulated_synced[EMULATED_MOST / EMULATED_WARP];  // barriers of each warp; shuffles order no memory
static unsigned long long emulated_slots[EMULATED_MOST / EMULATED_WARP][2][EMULATED_WARP];

static void emulated_give_way() {
  const unsigned self = threadIdx.x;
  swapcontext(&emulated_threads[self].context, &emulated_scheduler);
}

static void emulated_wait(EmulatedBarrier &barrier, const int &running, int site) {
  const int round = barrier.passed;
  if (barrier.waiting && barrier.site != site) emulated_fail("threads wait at different barriers");
  barrier.site = site;
  barrier.waiting++;
  while (barrier.passed == round) {
    if (barrier.waiting >= running) {
      barrier.waiting = 0;
      barrier.passed++;
      emulated_moved = true;
      return;
    }
    emulated_give_way();
  }
  emulated_moved = true;
}

static inline void emulated_block_barrier(int site) { emulated_wait(emulated_block, emulated_running, site); }

static inline void emulated_exchange(int site) {
  const int warp = threadIdx.x / EMULATED_WARP;
  emulated_wait(emulated_warps[warp], emulated_running_in[warp], site);
}

static inline void emulated_warp_barrier(int site) {
  const int warp = threadIdx.x / EMULATED_WARP, passed = emulated_warps[warp].passed;
  emulated_exchange(site);
  emulated_synced[warp] = passed + 1;
}

template <typename T> static T __shfl_xor_sync(unsigned mask, T value, int by) {
  const int self = threadIdx.x, warp = self / EMULATED_WARP, lane = self % EMULATED_WARP;
  if (mask != 0xffffffffu) emulated_fail("a shuffle of a part of a warp");
  const int width = (int)blockDim.x - warp * EMULATED_WARP < EMULATED_WARP ? blockDim.x - warp * EMULATED_WARP : 32;
  if (emulated_running_in[warp] != width) emulated_fail("a shuffle with threads that have ended");
  // Two sets of slots take turns, so that a thread that is one exchange ahead overwrites nothing.
  unsigned long long *slots = emulated_slots[warp][emulated_threads[self].exchanges++ % 2];
  memcpy(&slots[lane], &value, sizeof value);
  emulated_exchange(-by);
  T other = value;
  if ((lane ^ by) < width) memcpy(&other, &slots[lane ^ by], sizeof other);
  return other;
}

static unsigned __ballot_sync(unsigned mask, bool value) {
  unsigned all = value ? 1u << threadIdx.x % EMULATED_WARP : 0;
  for (int by = 1; by < EMULATED_WARP; by *= 2) all |= __shfl_xor_sync(mask, all, by);
  return all;
}
static inline int __popc(unsigned bits) { return __builtin_popcount(bits); }

static void emulated_start() {
  emulated_kernel(emulated_arguments);
  emulated_moved = true;
  emulated_threads[threadIdx.x].ended = true;
  emulated_running--;
  emulated_running_in[threadIdx.x / EMULATED_WARP]--;
  emulated_give_way();
}

static void emulated_run_block(unsigned threads) {
  if (!emulated_stacks) emulated_stacks = (char *)malloc((size_t)EMULATED_MOST * EMULATED_STACK);
  emulated_block = EmulatedBarrier();
  memset(emulated_warps, 0, sizeof emulated_warps);
  memset(emulated_synced, 0, sizeof emulated_synced);
  memset(emulated_running_in, 0, sizeof emulated_running_in);
  emulated_running = (int)threads;
  for (unsigned t = 0; t < threads; t++) {
    EmulatedThread &thread = emulated_threads[t];
    thread.ended = false;
    thread.exchanges = 0;
    emulated_running_in[t / EMULATED_WARP]++;
    getcontext(&thread.context);
    thread.context.uc_stack.ss_sp = emulated_stacks + (size_t)t * EMULATED_STACK;
    thread.context.uc_stack.ss_size = EMULATED_STACK;
    thread.context.uc_link = 0;
    makecontext(&thread.context, emulated_start, 0);
  }
  while (emulated_running > 0) {
    emulated_moved = false;
    for (unsigned k = 0; k < threads; k++) {
      const unsigned t = emulated_backwards ? threads - 1 - k : k;
      if (emulated_threads[t].ended) continue;
      threadIdx.x = t;
      swapcontext(&emulated_scheduler, &emulated_threads[t].context);
    }
    if (!emulated_moved) emulated_fail("threads wait for one another for ever");
  }
}

static long long emulated_apart = 1;  // blocks from one that runs to the next; the last one runs too

// Runs a kernel on `blocks` of `threads`; those of a kernel that never waits need no fibers.
static void emulated_launch(void (*kernel)(void *), void *arguments, long long blocks, int threads, bool waits,
                            bool backwards) {
  emulated_backwards = backwards;
  emulated_kernel = kernel;
  emulated_arguments = arguments;
  blockDim.x = threads;
  gridDim.x = (unsigned)blocks;
#ifdef EMULATED_CHECKS
  emulated_begin(__builtin_frame_address(0), waits);
  getcontext(&emulated_out);
  if (emulated_failed) return;
#endif
  for (long long next = 0, block = 0; block < blocks; block = next) {
    next = block + emulated_apart < blocks || block == blocks - 1 ? block + emulated_apart : blocks - 1;
    blockIdx.x = (unsigned)block;
    if (waits) {
      emulated_run_block(threads);
      continue;
    }
    for (int t = 0; t < threads; t++) {
      threadIdx.x = t;
      kernel(arguments);
    }
  }
}
