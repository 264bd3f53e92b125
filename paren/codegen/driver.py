"""The native code that runs a sequence of steps in one call: kernels, products and copies, on one or more threads.

A sequence is an array of records of `WORDS` 64-bit words. It runs a number of times, or until a record of the kind
`STOP_IF` finds its flag (an int32) set. Word 0 is the kind; the meaning of the others:

| word | kernel or product | copy | loop | stop if |
|---|---|---|---|---|
| 1 | address of the function | number of bytes | address of the body's records | |
| 2 | number of units | 1 | number of iterations | |
| 3 | number of threads | 1 | number of threads | |
| 4 | address of pointers to the parameters | the same: source, target | | the same: flag |
| 6 | | | number of the body's records | |
| 12 | the first unit | | | |

A record in the body of a loop runs whole on the thread of its iteration. Its other words:

| word | |
|---|---|
| 13 | address of a table: for each iteration the bytes to add to each pointer, then the units to add to the first |
| 14 | address of the bytes to add to each pointer for each thread |
| 15 | number of pointers, at most `MOST_POINTERS` |

Everything it calls arrives as an address, so the text is one and the same in every process. Units are dealt out in
contiguous ranges; a function computes each unit alike wherever it runs, so the number of threads does not show in bits.
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

define internal void @part(ptr %work) {
  %record = call ptr @address(ptr %work, i64 0)
  %table = call ptr @address(ptr %work, i64 1)
  %thread.of = call ptr @address(ptr %table, i64 1)
  %threads.of = call ptr @address(ptr %table, i64 2)
  %thread.short = call i32 %thread.of()
  %threads.short = call i32 %threads.of()
  %thread = zext i32 %thread.short to i64
  %threads = zext i32 %threads.short to i64
  %units = call i64 @get(ptr %record, i64 2)
  %first = mul i64 %units, %thread
  %begin = udiv i64 %first, %threads
  %last = add i64 %first, %units
  %end = udiv i64 %last, %threads
  call void @range(ptr %record, i64 %begin, i64 %end, i64 %thread)
  ret void
}

define i64 @run(ptr %records, i64 %count, ptr %table, i64 %times) {
entry:
  %work = alloca [2 x ptr]
  %work.table = getelementptr ptr, ptr %work, i64 1
  store ptr %table, ptr %work.table
  %parallel = call ptr @address(ptr %table, i64 0)
  %some.records = icmp slt i64 0, %count
  %some.times = icmp slt i64 0, %times
  %some = and i1 %some.records, %some.times
  br i1 %some, label %pass, label %finish
pass:
  %done = phi i64 [ 0, %entry ], [ %done.next, %passed ]
  br label %step
step:
  %i = phi i64 [ 0, %pass ], [ %next, %stepped ]
  %words = mul i64 %i, 16
  %record = getelementptr i64, ptr %records, i64 %words
  %kind = call i64 @get(ptr %record, i64 0)
  %units = call i64 @get(ptr %record, i64 2)
  %team = call i64 @get(ptr %record, i64 3)
  %asks = icmp eq i64 %kind, 2
  br i1 %asks, label %ask, label %act
ask:
  %parameters = call ptr @address(ptr %record, i64 4)
  %flag = call ptr @address(ptr %parameters, i64 0)
  %value = load i32, ptr %flag
  %stops = icmp ne i32 %value, 0
  br i1 %stops, label %finish, label %stepped
act:
  %alone = icmp sle i64 %team, 1
  br i1 %alone, label %serial, label %shared
serial:
  call void @range(ptr %record, i64 0, i64 %units, i64 0)
  br label %stepped
shared:
  store ptr %record, ptr %work
  %team.short = trunc i64 %team to i32
  call void %parallel(ptr @part, ptr %work, i32 %team.short, i32 0)
  br label %stepped
stepped:
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %count
  br i1 %more, label %step, label %passed
passed:
  %done.next = add i64 %done, 1
  %again = icmp slt i64 %done.next, %times
  br i1 %again, label %pass, label %finish
finish:
  %result = phi i64 [ 0, %entry ], [ %done, %ask ], [ %done.next, %passed ]
  ret i64 %result
}
"""
