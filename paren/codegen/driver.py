"""The native code that runs a sequence of steps in one call: kernels, products and copies, on one or more threads.

A sequence is an array of records of `WORDS` 64-bit words. It runs a number of times, or until a record of the kind
`STOP_IF` finds its flag (an int32) set. Word 0 is the kind; the meaning of the others:

| word | kernel or product | copy | loop | stop if |
|---|---|---|---|---|
| 1 | address of the function | number of bytes | address of the body's records | |
| 2 | number of units | 1 | number of iterations | |
| 3 | number of parts, each of them for one thread | 1 | the same | |
| 4 | address of pointers to the parameters | the same: source, target | | the same: flag |
| 5 | 1: the threads meet before it | the same | the same | the same |
| 6 | | | number of the body's records | |
| 12 | the first unit | | | |

A record in the body of a loop runs whole on the thread of its iteration. Its other words:

| word | |
|---|---|
| 13 | address of a table: for each iteration the bytes to add to each pointer, then the units to add to the first |
| 14 | address of the bytes to add to each pointer for each part |
| 15 | number of pointers, at most `MOST_POINTERS` |

Everything it calls arrives as an address, so the text is one and the same in every process. Parts are contiguous ranges
of units; a function computes each unit alike wherever it runs, so the number of threads does not show in bits.

All times of a sequence are one parallel region of libgomp. A team keeps its threads: each runs its part of a record
after its part of the record before, and waits for the others (in libgomp's barrier, which looks for some microseconds
and then sleeps) only where a record says so, and behind the last record if the sequence runs again.

A short sequence gains by a team only on a quiet machine whose processors are near to each other, so `paced` measures:
it runs some times on one thread, then on all; where that takes longer (or, at first, while threads wake up, four times
as long), one thread goes on for a while that doubles with each such attempt.
"""

from __future__ import annotations

from enum import IntEnum

WORDS = 16
MOST_POINTERS = 64


class Kind(IntEnum):
    KERNEL = 0
    COPY = 1
    STOP_IF = 2
    LOOP = 3


class Call(IntEnum):
    """Places in the table of addresses: libgomp's functions."""

    PARALLEL = 0
    THREAD = 1
    THREADS = 2
    CLOCK = 3
    MEET = 4


class Pace(IntEnum):
    """Words of what a short sequence remembers from call to call; `ALONE` is a float64."""

    LEFT = 0  # how many times it still runs on one thread
    PATIENCE = 1  # how many it will, after the next attempt that fails
    ATTEMPT = 2  # how many times the next attempt runs
    ALONE = 3  # seconds that one time takes on one thread
    WON = 4  # times run by all threads since one thread was measured
    PROBE = 5  # how many of them there will be before it is measured again


FIRST_PACE = {Pace.LEFT: 16, Pace.PATIENCE: 16, Pace.ATTEMPT: 2, Pace.PROBE: 64}

# `i64 @run(ptr records, i64 count, ptr table, i64 times, i64 team, ptr pace)` gives how many times the records ran to
# their end; `pace` is null or int64[len(Pace)].
DRIVER = """
define internal i64 @get(ptr %record, i64 %number) alwaysinline {
  %place = getelementptr i64, ptr %record, i64 %number
  %value = load i64, ptr %place
  ret i64 %value
}

define internal ptr @address(ptr %record, i64 %number) alwaysinline {
  %place = getelementptr i64, ptr %record, i64 %number
  %value = load ptr, ptr %place
  ret ptr %value
}

define internal void @range(ptr %record, i64 %begin, i64 %end, i64 %thread) {
entry:
  %kind = call i64 @get(ptr %record, i64 0)
  %parameters = call ptr @address(ptr %record, i64 4)
  switch i64 %kind, label %kernel [ i64 1, label %copy
                                    i64 3, label %loop ]
kernel:
  %function = call ptr @address(ptr %record, i64 1)
  %first = call i64 @get(ptr %record, i64 12)
  %from = add i64 %first, %begin
  %to = add i64 %first, %end
  call void %function(i64 %from, i64 %to, ptr %parameters)
  ret void
loop:
  %some = icmp slt i64 %begin, %end
  br i1 %some, label %iteration, label %finished
iteration:
  %i = phi i64 [ %begin, %loop ], [ %next, %iteration ]
  call void @iteration(ptr %record, i64 %i, i64 %thread)
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %end
  br i1 %more, label %iteration, label %finished
finished:
  ret void
copy:
  %bytes = call i64 @get(ptr %record, i64 1)
  %source = call ptr @address(ptr %parameters, i64 0)
  %target = call ptr @address(ptr %parameters, i64 1)
  call void @llvm.memmove.p0.p0.i64(ptr %target, ptr %source, i64 %bytes, i1 false)
  ret void
}

define internal void @iteration(ptr %loop, i64 %i, i64 %thread) {
entry:
  %record = alloca [16 x i64], align 8
  %pointers = alloca [64 x ptr], align 8
  %body = call ptr @address(ptr %loop, i64 1)
  %count = call i64 @get(ptr %loop, i64 6)
  br label %piece
piece:
  %j = phi i64 [ 0, %entry ], [ %j.next, %done ]
  %words = mul i64 %j, 16
  %source = getelementptr i64, ptr %body, i64 %words
  call void @llvm.memcpy.p0.p0.i64(ptr %record, ptr %source, i64 128, i1 false)
  %bases = call ptr @address(ptr %source, i64 4)
  %table = call ptr @address(ptr %source, i64 13)
  %lanes = call ptr @address(ptr %source, i64 14)
  %number = call i64 @get(ptr %source, i64 15)
  %columns = add i64 %number, 1
  %line.first = mul i64 %i, %columns
  %line = getelementptr i64, ptr %table, i64 %line.first
  br label %pointer
pointer:
  %p = phi i64 [ 0, %piece ], [ %p.next, %pointer ]
  %base = call ptr @address(ptr %bases, i64 %p)
  %move = call i64 @get(ptr %line, i64 %p)
  %lane.each = call i64 @get(ptr %lanes, i64 %p)
  %lane = mul i64 %lane.each, %thread
  %bytes = add i64 %move, %lane
  %moved = getelementptr i8, ptr %base, i64 %bytes
  %slot = getelementptr ptr, ptr %pointers, i64 %p
  store ptr %moved, ptr %slot
  %p.next = add i64 %p, 1
  %p.more = icmp slt i64 %p.next, %number
  br i1 %p.more, label %pointer, label %run
run:
  %parameters = getelementptr i64, ptr %record, i64 4
  store ptr %pointers, ptr %parameters
  %first.place = getelementptr i64, ptr %record, i64 12
  %first.old = load i64, ptr %first.place
  %first.move = call i64 @get(ptr %line, i64 %number)
  %first = add i64 %first.old, %first.move
  store i64 %first, ptr %first.place
  %units = call i64 @get(ptr %record, i64 2)
  call void @range(ptr %record, i64 0, i64 %units, i64 %thread)
  br label %done
done:
  %j.next = add i64 %j, 1
  %j.more = icmp slt i64 %j.next, %count
  br i1 %j.more, label %piece, label %finish
finish:
  ret void
}

define internal void @passes(ptr %work, i64 %thread, i64 %threads) {
entry:
  %records = call ptr @address(ptr %work, i64 0)
  %count = call i64 @get(ptr %work, i64 1)
  %times = call i64 @get(ptr %work, i64 3)
  %alone = icmp eq i64 %threads, 1
  %table = call ptr @address(ptr %work, i64 2)
  %meet = call ptr @address(ptr %table, i64 4)
  br label %pass
pass:
  %done = phi i64 [ 0, %entry ], [ %done.next, %together ], [ %done.next, %passed ]
  br label %step
step:
  %i = phi i64 [ 0, %pass ], [ %next, %stepped ]
  %words = mul i64 %i, 16
  %record = getelementptr i64, ptr %records, i64 %words
  %kind = call i64 @get(ptr %record, i64 0)
  %units = call i64 @get(ptr %record, i64 2)
  %parts.team = call i64 @get(ptr %record, i64 3)
  %parts = select i1 %alone, i64 1, i64 %parts.team
  %meets.word = call i64 @get(ptr %record, i64 5)
  %meets.team = icmp ne i64 %meets.word, 0
  %meets = select i1 %alone, i1 false, i1 %meets.team
  br i1 %meets, label %wait, label %ready
wait:
  call void %meet()
  br label %ready
ready:
  %asks = icmp eq i64 %kind, 2
  br i1 %asks, label %ask, label %share
ask:
  %parameters = call ptr @address(ptr %record, i64 4)
  %flag = call ptr @address(ptr %parameters, i64 0)
  %value = load i32, ptr %flag
  %stops = icmp ne i32 %value, 0
  br i1 %stops, label %finish, label %stepped
share:
  %part = phi i64 [ %thread, %ready ], [ %part.next, %own ]
  %some = icmp slt i64 %part, %parts
  br i1 %some, label %own, label %stepped
own:
  %first = mul i64 %units, %part
  %begin = udiv i64 %first, %parts
  %last = add i64 %first, %units
  %end = udiv i64 %last, %parts
  call void @range(ptr %record, i64 %begin, i64 %end, i64 %part)
  %part.next = add i64 %part, %threads
  br label %share
stepped:
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %count
  br i1 %more, label %step, label %passed.any
passed.any:
  %done.next = add i64 %done, 1
  %again = icmp slt i64 %done.next, %times
  br i1 %again, label %passed, label %finish
passed:
  br i1 %alone, label %pass, label %together
together:
  call void %meet()
  br label %pass
finish:
  %result = phi i64 [ %done, %ask ], [ %done.next, %passed.any ]
  %leads = icmp eq i64 %thread, 0
  br i1 %leads, label %tell, label %leave
tell:
  %result.place = getelementptr i64, ptr %work, i64 4
  store i64 %result, ptr %result.place
  br label %leave
leave:
  ret void
}

define internal void @member(ptr %work) {
  %table = call ptr @address(ptr %work, i64 2)
  %thread.of = call ptr @address(ptr %table, i64 1)
  %threads.of = call ptr @address(ptr %table, i64 2)
  %thread.short = call i32 %thread.of()
  %threads.short = call i32 %threads.of()
  %thread = zext i32 %thread.short to i64
  %threads = zext i32 %threads.short to i64
  call void @passes(ptr %work, i64 %thread, i64 %threads)
  ret void
}

define internal i64 @several(ptr %work, i64 %times, i64 %team) {
entry:
  %times.place = getelementptr i64, ptr %work, i64 3
  store i64 %times, ptr %times.place
  %alone = icmp sle i64 %team, 1
  br i1 %alone, label %serial, label %together
serial:
  call void @passes(ptr %work, i64 0, i64 1)
  br label %finish
together:
  %table = call ptr @address(ptr %work, i64 2)
  %parallel = call ptr @address(ptr %table, i64 0)
  %team.short = trunc i64 %team to i32
  call void %parallel(ptr @member, ptr %work, i32 %team.short, i32 0)
  br label %finish
finish:
  %result = call i64 @get(ptr %work, i64 4)
  ret i64 %result
}

define internal i64 @paced(ptr %work, i64 %times, i64 %team, ptr %pace) {
entry:
  %table = call ptr @address(ptr %work, i64 2)
  %clock = call ptr @address(ptr %table, i64 3)
  %patience.place = getelementptr i64, ptr %pace, i64 1
  %attempt.place = getelementptr i64, ptr %pace, i64 2
  %alone.place = getelementptr i64, ptr %pace, i64 3
  %won.place = getelementptr i64, ptr %pace, i64 4
  %probe.place = getelementptr i64, ptr %pace, i64 5
  br label %turn
turn:
  %done = phi i64 [ 0, %entry ], [ %done.next, %judged ]
  %left = load i64, ptr %pace
  %attempt = load i64, ptr %attempt.place
  %alone = load double, ptr %alone.place
  %rest = sub i64 %times, %done
  %tries = icmp sle i64 %left, 0
  %most = select i1 %tries, i64 %attempt, i64 %left
  %size = call i64 @llvm.smin.i64(i64 %most, i64 %rest)
  %members = select i1 %tries, i64 %team, i64 1
  %begin = call double %clock()
  %made = call i64 @several(ptr %work, i64 %size, i64 %members)
  %end = call double %clock()
  %done.next = add i64 %done, %made
  %whole = icmp eq i64 %made, %size
  br i1 %whole, label %judge, label %finish
judge:
  %spent = fsub double %end, %begin
  %size.wide = sitofp i64 %size to double
  %each = fdiv double %spent, %size.wide
  br i1 %tries, label %try, label %measure
measure:
  %left.next = sub i64 %left, %size
  store i64 %left.next, ptr %pace
  %raised = fmul double %alone, 1.125
  %unknown = fcmp oeq double %alone, 0.0
  %lower = fcmp olt double %each, %raised
  %new = or i1 %unknown, %lower
  %alone.next = select i1 %new, double %each, double %raised
  store double %alone.next, ptr %alone.place
  br label %judged
try:
  %first.attempt = icmp eq i64 %attempt, 2
  %four = fmul double %alone, 4.0
  %limit = select i1 %first.attempt, double %four, double %alone
  %loses = fcmp ogt double %each, %limit
  br i1 %loses, label %lost, label %won
lost:
  %patience = load i64, ptr %patience.place
  store i64 %patience, ptr %pace
  %patience.twice = shl i64 %patience, 1
  %patience.next = call i64 @llvm.smin.i64(i64 %patience.twice, i64 4096)
  store i64 %patience.next, ptr %patience.place
  store i64 2, ptr %attempt.place
  br label %judged
won:
  %settled = icmp eq i64 %attempt, 64
  %patience.old = load i64, ptr %patience.place
  %patience.new = select i1 %settled, i64 16, i64 %patience.old
  store i64 %patience.new, ptr %patience.place
  %attempt.twice = shl i64 %attempt, 1
  %attempt.next = call i64 @llvm.smin.i64(i64 %attempt.twice, i64 64)
  store i64 %attempt.next, ptr %attempt.place
  %won.old = load i64, ptr %won.place
  %won.sum = add i64 %won.old, %size
  %probe = load i64, ptr %probe.place
  %due = icmp sge i64 %won.sum, %probe
  %probe.more = shl i64 %probe, 2
  %probe.most = call i64 @llvm.smin.i64(i64 %probe.more, i64 4096)
  %probe.next = select i1 %due, i64 %probe.most, i64 %probe
  store i64 %probe.next, ptr %probe.place
  %won.next = select i1 %due, i64 0, i64 %won.sum
  store i64 %won.next, ptr %won.place
  %left.new = select i1 %due, i64 16, i64 0
  store i64 %left.new, ptr %pace
  br label %judged
judged:
  %more = icmp slt i64 %done.next, %times
  br i1 %more, label %turn, label %finish
finish:
  ret i64 %done.next
}

define i64 @run(ptr %records, i64 %count, ptr %table, i64 %times, i64 %team, ptr %pace) {
entry:
  %work = alloca [5 x i64]
  %work.1 = getelementptr i64, ptr %work, i64 1
  %work.2 = getelementptr i64, ptr %work, i64 2
  store ptr %records, ptr %work
  store i64 %count, ptr %work.1
  store ptr %table, ptr %work.2
  %some.records = icmp slt i64 0, %count
  %some.times = icmp slt i64 0, %times
  %some = and i1 %some.records, %some.times
  br i1 %some, label %start, label %finish
start:
  %long = icmp eq ptr %pace, null
  br i1 %long, label %steady, label %short
steady:
  %steady.done = call i64 @several(ptr %work, i64 %times, i64 %team)
  br label %finish
short:
  %short.done = call i64 @paced(ptr %work, i64 %times, i64 %team, ptr %pace)
  br label %finish
finish:
  %result = phi i64 [ 0, %entry ], [ %steady.done, %steady ], [ %short.done, %short ]
  ret i64 %result
}
"""
