// What compute-sanitizer finds on a card, found without one: accesses beyond the parameters of a kernel or its arrays,
// reads of what nobody wrote, and races. The compiler calls a function before each access (as for its own thread
// sanitizer, whose library is not used). Exact for what CUDA promises: two threads are ordered by barriers of their
// block, two of a warp by its barriers too, two of different blocks never; shuffles order no memory.

#include <sys/mman.h>

#define EMULATED_BARE __attribute__((no_sanitize("thread", "undefined"), noinline))

struct EmulatedPart { unsigned long long begin, bytes; int item, reads, writes; };  // a parameter

// The last write of a grain of memory and the reads after it. Blocks count from 1: 0 is none.
struct EmulatedGrain {
  int block, thread, barriers, synced;
  int read_block, read_thread, read_other, read_barriers, read_synced;
  bool many_blocks, many_warps, many_threads;  // of the reads: since ever, since the barriers of the last
};

// Which threads have work: groups of `group` threads with a unit each, `per_block` in a block, side by side or, `by_lane`,
// thread by thread; or lanes of a warp, `strips` warps to a row of `lanes`, `ranges` blocks to a warp. Others compute what
// one with work does, and may read what that writes, since nothing is done with it.
struct EmulatedWork { long long units; int group, per_block, by_lane, ranges, strips, lanes; };

struct EmulatedRange { unsigned long long begin, end; EmulatedGrain *grains; };

enum { EMULATED_PARTS = 64, EMULATED_SHARED = 48 << 10 };

extern "C" char __start_emulated_shared[] __attribute__((weak, visibility("hidden")));
extern "C" char __stop_emulated_shared[] __attribute__((weak, visibility("hidden")));
extern "C" char __ehdr_start[] __attribute__((visibility("hidden")));
extern "C" char _end[] __attribute__((visibility("hidden")));

static EmulatedWork emulated_work;
static EmulatedPart emulated_parts[EMULATED_PARTS];
static EmulatedRange emulated_ranges[EMULATED_PARTS];  // parts that overlap are one
static EmulatedGrain emulated_shared_grains[EMULATED_SHARED];  // of one byte each
static int emulated_part_count, emulated_range_count, emulated_grain, emulated_last;
static bool emulated_waits;
static unsigned long long emulated_top;
static char emulated_said[512];
static unsigned long long emulated_said_at;  // the instruction, from the beginning of the library

EMULATED_BARE [[noreturn]] static void emulated_tell(const char *what, unsigned long long at, int block, int thread) {
  int used = snprintf(emulated_said, sizeof emulated_said, "%s, block %u, thread %u", what, blockIdx.x, threadIdx.x);
  if (block) snprintf(emulated_said + used, sizeof emulated_said - used, "; block %d, thread %d", block - 1, thread);
  emulated_said_at = at ? at - (unsigned long long)__ehdr_start : 0;
  emulated_failed = true;
  setcontext(&emulated_out);
  abort();
}

[[noreturn]] static void emulated_fail(const char *message) { emulated_tell(message, 0, 0, 0); }

EMULATED_BARE static const char *emulated_name(unsigned long long address, const char *what) {
  static char name[160];
  if (address >= (unsigned long long)__start_emulated_shared && address < (unsigned long long)__stop_emulated_shared) {
    snprintf(name, sizeof name, "%s shared memory", what);
    return name;
  }
  int nearest = -1;
  long long apart = 1ll << 62;
  for (int p = 0; p < emulated_part_count; p++) {
    const EmulatedPart &part = emulated_parts[p];
    const long long from = (long long)(address - part.begin), behind = from - (long long)part.bytes + 1;
    const long long distance = from < 0 ? -from : behind > 0 ? behind : 0;
    if (distance < apart) apart = distance, nearest = p;
  }
  if (nearest < 0 || apart > 1 << 20) {
    snprintf(name, sizeof name, "%s what is no parameter", what);
  } else {
    const EmulatedPart &part = emulated_parts[nearest];
    const long long element = (long long)(address - part.begin) / part.item;
    snprintf(name, sizeof name, "%s p%d[%lld] of %lld", what, nearest, element, (long long)part.bytes / part.item);
  }
  return name;
}

// Whether something that a thread of the running block did comes before what the running thread does.
EMULATED_BARE static bool emulated_before(int thread, int barriers, int synced) {
  const int self = (int)threadIdx.x, warp = self / EMULATED_WARP;
  return thread == self || !emulated_waits || barriers != emulated_block.passed ||
         (thread / EMULATED_WARP == warp && synced != emulated_synced[warp]);
}

EMULATED_BARE static void emulated_touch(EmulatedGrain &grain, bool writes, bool shared, bool initial,
                                         unsigned long long address, unsigned long long at) {
  const int self = (int)threadIdx.x, warp = self / EMULATED_WARP, block = (int)blockIdx.x + 1;
  const int barriers = emulated_waits ? emulated_block.passed : 0, synced = emulated_waits ? emulated_synced[warp] : 0;
  // Blocks have shared memory of their own, and threads that never wait are never ordered.
  const bool written = grain.block && (!shared || grain.block == block);
  const bool was_read = grain.read_block && (!shared || grain.read_block == block);
  const bool alone = !emulated_waits;
  if (written) {
    const bool ordered = grain.block == block &&
                         (alone ? grain.thread == self : emulated_before(grain.thread, grain.barriers, grain.synced));
    if (!ordered)
      emulated_tell(emulated_name(address, writes ? "two threads write" : "a thread reads what another writes:"), at,
                    grain.block, grain.thread);
  } else if (!writes && !initial) {
    emulated_tell(emulated_name(address, "a thread reads what nobody wrote:"), at, 0, 0);
  }
  if (!writes) {
    if (!was_read) grain.many_blocks = grain.many_warps = grain.many_threads = false;
    const bool now = was_read && grain.read_block == block && grain.read_barriers == barriers;
    if (was_read && grain.read_block != block) grain.many_blocks = true;
    const bool same_warp = grain.read_thread / EMULATED_WARP == warp;
    const bool same = now && same_warp && grain.read_synced == synced;
    grain.many_warps = now && (grain.many_warps || !same_warp);
    grain.many_threads = same && (grain.many_threads || grain.read_thread != self);
    if (was_read && grain.read_thread != self) grain.read_other = grain.read_thread;
    grain.read_block = block, grain.read_thread = self, grain.read_barriers = barriers, grain.read_synced = synced;
    return;
  }
  if (was_read) {
    bool ordered = grain.read_block == block && !grain.many_blocks;
    if (ordered && (alone || grain.read_barriers == barriers)) {
      ordered = !grain.many_warps && grain.read_thread / EMULATED_WARP == warp;
      if (ordered && (alone || grain.read_synced == synced)) ordered = !grain.many_threads && grain.read_thread == self;
    }
    if (!ordered)
      emulated_tell(emulated_name(address, "a thread writes what another reads:"), at, grain.read_block,
                    grain.read_thread == self ? grain.read_other : grain.read_thread);
  }
  grain.block = block, grain.thread = self, grain.barriers = barriers, grain.synced = synced;
  grain.read_block = 0;
}

EMULATED_BARE static bool emulated_idle() {
  const EmulatedWork &work = emulated_work;
  if (work.ranges) {
    const unsigned strip = blockIdx.x / work.ranges % work.strips;
    return (int)(strip * EMULATED_WARP + threadIdx.x % EMULATED_WARP) >= work.lanes;
  }
  if (!work.group) return false;
  const unsigned place = work.by_lane ? threadIdx.x % work.per_block : threadIdx.x / work.group;
  return (long long)blockIdx.x * work.per_block + place >= work.units;
}

EMULATED_BARE static void emulated_access(void *place, unsigned long long bytes, bool writes, void *from) {
  const unsigned long long address = (unsigned long long)place, end = address + bytes, at = (unsigned long long)from;
  for (int k = 0; k < emulated_range_count; k++) {
    const int number = (k + emulated_last) % emulated_range_count;
    const EmulatedRange &range = emulated_ranges[number];
    if (address < range.begin || address >= range.end) continue;
    emulated_last = number;
    bool inside = false, initial = false;
    for (int p = 0; p < emulated_part_count; p++) {
      const EmulatedPart &part = emulated_parts[p];
      if (address < part.begin || end > part.begin + part.bytes) continue;
      inside = inside || !writes || part.writes;
      initial = initial || part.reads;
    }
    if (!inside) emulated_tell(emulated_name(end - 1, writes ? "a write of" : "a read of"), at, 0, 0);
    if (emulated_idle()) {
      if (writes) emulated_tell(emulated_name(address, "a thread without work writes"), at, 0, 0);
      return;
    }
    const unsigned long long first = (address - range.begin) / emulated_grain;
    const unsigned long long last = (end - 1 - range.begin) / emulated_grain;
    for (unsigned long long g = first; g <= last; g++)
      emulated_touch(range.grains[g], writes, false, initial, range.begin + g * emulated_grain, at);
    return;
  }
  const unsigned long long shared = (unsigned long long)__start_emulated_shared;
  if (address >= shared && end <= (unsigned long long)__stop_emulated_shared) {
    if (end - shared > EMULATED_SHARED) return;  // kernels of one library share this memory: none has that much
    for (unsigned long long byte = address - shared; byte < end - shared; byte++)
      emulated_touch(emulated_shared_grains[byte], writes, true, false, address, at);
    return;
  }
  const unsigned long long stacks = (unsigned long long)emulated_stacks;
  const unsigned long long words = (unsigned long long)emulated_arguments;
  const bool own = (address >= words && end <= words + 8 * EMULATED_PARTS) ||
                   (address >= (unsigned long long)__ehdr_start && end <= (unsigned long long)_end) ||
                   (address >= stacks && end <= stacks + (unsigned long long)EMULATED_MOST * EMULATED_STACK) ||
                   (address >= (unsigned long long)__builtin_frame_address(0) && end <= emulated_top);
  if (!own) emulated_tell(emulated_name(address, writes ? "a write of" : "a read of"), at, 0, 0);
}

EMULATED_BARE static void emulated_begin(const void *top, bool waits) {
  emulated_waits = waits;
  emulated_top = (unsigned long long)top;
  emulated_failed = false;
  emulated_said[0] = 0;
  memset(emulated_shared_grains, 0, sizeof emulated_shared_grains);
}

EMULATED_BARE static size_t emulated_room(const EmulatedRange &range) {
  return ((range.end - range.begin) / emulated_grain + 1) * sizeof(EmulatedGrain);
}

// Before a launch.
extern "C" EMULATED_BARE void emulated_watch(const EmulatedPart *parts, int count, const EmulatedWork *work,
                                             long long apart) {
  emulated_work = *work;
  emulated_apart = apart;
  if (count > EMULATED_PARTS) abort();
  emulated_part_count = count;
  emulated_range_count = emulated_last = 0;
  emulated_grain = 8;
  for (int p = 0; p < count; p++) {
    EmulatedRange made = {parts[p].begin, parts[p].begin + parts[p].bytes, 0};
    emulated_parts[p] = parts[p];
    while (made.begin % emulated_grain || parts[p].item % emulated_grain) emulated_grain /= 2;
    for (int r = 0; r < emulated_range_count;) {
      const EmulatedRange &other = emulated_ranges[r];
      if (made.begin >= other.end || other.begin >= made.end) {
        r++;
        continue;
      }
      made.begin = made.begin < other.begin ? made.begin : other.begin;
      made.end = made.end > other.end ? made.end : other.end;
      emulated_ranges[r] = emulated_ranges[--emulated_range_count];
      r = 0;
    }
    emulated_ranges[emulated_range_count++] = made;
  }
  for (int r = 0; r < emulated_range_count; r++) {
    EmulatedRange &range = emulated_ranges[r];
    void *made = mmap(0, emulated_room(range), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (made == MAP_FAILED) abort();
    range.grains = (EmulatedGrain *)made;
  }
}

// After it: what failed first, or nothing, and where.
extern "C" EMULATED_BARE const char *emulated_verdict(unsigned long long *at) {
  for (int r = 0; r < emulated_range_count; r++) munmap(emulated_ranges[r].grains, emulated_room(emulated_ranges[r]));
  emulated_range_count = emulated_part_count = 0;
  *at = emulated_said_at;
  return emulated_failed ? emulated_said : "";
}

#define EMULATED_HOOK(kind, bytes, writes)                                                                  \
  extern "C" EMULATED_BARE __attribute__((visibility("hidden"))) void __tsan_##kind##bytes(void *address) { \
    emulated_access(address, bytes, writes, __builtin_return_address(0));                                   \
  }
#define EMULATED_HOOKS(bytes)                  \
  EMULATED_HOOK(read, bytes, false)            \
  EMULATED_HOOK(write, bytes, true)            \
  EMULATED_HOOK(unaligned_read, bytes, false)  \
  EMULATED_HOOK(unaligned_write, bytes, true)
EMULATED_HOOKS(1) EMULATED_HOOKS(2) EMULATED_HOOKS(4) EMULATED_HOOKS(8) EMULATED_HOOKS(16)

extern "C" EMULATED_BARE __attribute__((visibility("hidden"))) void __tsan_read_range(void *address, unsigned long bytes) {
  emulated_access(address, bytes, false, __builtin_return_address(0));
}
extern "C" EMULATED_BARE __attribute__((visibility("hidden"))) void __tsan_write_range(void *address, unsigned long bytes) {
  emulated_access(address, bytes, true, __builtin_return_address(0));
}
extern "C" EMULATED_BARE __attribute__((visibility("hidden"))) void __tsan_init() {}
extern "C" EMULATED_BARE __attribute__((visibility("hidden"))) void __tsan_func_entry(void *) {}
extern "C" EMULATED_BARE __attribute__((visibility("hidden"))) void __tsan_func_exit(void *) {}

#define EMULATED_UNDEFINED(name, message)                                                             \
  extern "C" EMULATED_BARE __attribute__((visibility("hidden"))) void __ubsan_handle_##name##_abort() { \
    emulated_tell(message, (unsigned long long)__builtin_return_address(0), 0, 0);                      \
  }
EMULATED_UNDEFINED(out_of_bounds, "an index beyond an array")
EMULATED_UNDEFINED(shift_out_of_bounds, "a shift by too many bits")
EMULATED_UNDEFINED(divrem_overflow, "a division by 0")
EMULATED_UNDEFINED(add_overflow, "an integer sum that overflows")
EMULATED_UNDEFINED(sub_overflow, "an integer difference that overflows")
EMULATED_UNDEFINED(mul_overflow, "an integer product that overflows")
EMULATED_UNDEFINED(negate_overflow, "an integer negation that overflows")
EMULATED_UNDEFINED(float_cast_overflow, "a float beyond the integers")
