/* NCCL between processes of one machine whose cards are host memory: a group moves its bytes through sockets before it
   ends, in the order of each pair. What waits for a rank that is gone waits until it is aborted, as on cards.
   FAKE_NCCL_REFUSES: the rank that does not connect. FAKE_NCCL_LOSES: a number of groups after which the connection
   breaks. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { MOST = 64, MOVES = 256, SUCCESS = 0, SYSTEM = 2, USAGE = 5, REMOTE = 6 };

typedef struct { char internal[128]; } Id;
typedef struct { int count, rank, peers[MOST], groups; volatile int aborted, lost; } Comm;
typedef struct { char *at; size_t left; int peer, sends; } Move;

static __thread Move moves[MOVES];
static __thread int number, inside;
static __thread Comm *used;
static char said[256];

int ncclGetVersion(int *version) { *version = 22809; return SUCCESS; }
const char *ncclGetErrorString(int result) {
  return result == USAGE ? "invalid usage" : result == REMOTE ? "remote process exited or there was a network error" : "other";
}
const char *ncclGetLastError(void *comm) { return said; }

int ncclGetUniqueId(Id *id) {
  unsigned char random[16];
  if (getrandom(random, sizeof random, 0) < 0) return SYSTEM;
  memset(id, 0, sizeof *id);
  for (int i = 0; i < 16; i++) sprintf(id->internal + 2 * i, "%02x", random[i]);
  return SUCCESS;
}

static struct sockaddr_un place(Id id, int rank) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "fake-nccl-%.32s-%d", id.internal, rank);
  return address;
}

int ncclCommInitRank(Comm **made, int count, Id id, int rank) {
  const char *refuses = getenv("FAKE_NCCL_REFUSES");
  if (count > MOST) return USAGE;
  if (refuses && *refuses && atoi(refuses) == rank) {
    snprintf(said, sizeof said, "no connection for rank %d", rank);
    return USAGE;
  }
  Comm *comm = calloc(1, sizeof *comm);
  comm->count = count, comm->rank = rank;
  struct sockaddr_un own = place(id, rank);
  int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (bind(listener, (void *)&own, sizeof own) || listen(listener, MOST)) return SYSTEM;
  for (int peer = 0; peer < rank; peer++) {
    struct sockaddr_un other = place(id, peer);
    int link = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    while (connect(link, (void *)&other, sizeof other)) usleep(2000);
    if (write(link, &rank, sizeof rank) != sizeof rank) return SYSTEM;
    comm->peers[peer] = link;
  }
  for (int waiting = count - 1 - rank; waiting > 0; waiting--) {
    int link = accept4(listener, 0, 0, SOCK_CLOEXEC), peer;
    if (read(link, &peer, sizeof peer) != sizeof peer) return SYSTEM;
    comm->peers[peer] = link;
  }
  close(listener);
  for (int peer = 0; peer < count; peer++)
    if (peer != rank) fcntl(comm->peers[peer], F_SETFL, O_NONBLOCK);
  *made = comm;
  return SUCCESS;
}

int ncclCommGetAsyncError(Comm *comm, int *error) { *error = comm->lost ? REMOTE : SUCCESS; return SUCCESS; }
int ncclCommDestroy(Comm *comm) {
  for (int peer = 0; peer < comm->count; peer++)
    if (peer != comm->rank) close(comm->peers[peer]);
  return SUCCESS;
}
int ncclCommAbort(Comm *comm) {
  comm->aborted = 1;
  return SUCCESS;
}

int ncclGroupStart(void) { number = 0, inside = 1; return SUCCESS; }

static int move(char *at, size_t count, int type, int peer, Comm *comm, int sends) {
  if (!inside || type != 1 || peer == comm->rank || peer >= comm->count || number == MOVES) return USAGE;
  moves[number++] = (Move){at, count, peer, sends};
  used = comm;
  return SUCCESS;
}
int ncclSend(char *at, size_t count, int type, int peer, Comm *comm, void *stream) {
  return move(at, count, type, peer, comm, 1);
}
int ncclRecv(char *at, size_t count, int type, int peer, Comm *comm, void *stream) {
  return move(at, count, type, peer, comm, 0);
}

int ncclGroupEnd(void) {
  inside = 0;
  if (!number) return SUCCESS;
  Comm *comm = used;
  const char *loses = getenv("FAKE_NCCL_LOSES");
  if (loses && *loses && ++comm->groups > atoi(loses)) comm->lost = 1;
  for (;;) {
    int left = 0, moved = 0;
    for (int i = 0; i < number; i++) {
      Move *each = moves + i;
      int first = 1;
      for (int j = 0; j < i; j++) first &= moves[j].peer != each->peer || moves[j].sends != each->sends || !moves[j].left;
      if (!each->left) continue;
      left = 1;
      if (!first || comm->lost) continue;
      int link = comm->peers[each->peer];
      ssize_t done = each->sends ? send(link, each->at, each->left, MSG_NOSIGNAL) : recv(link, each->at, each->left, 0);
      if (done > 0) each->at += done, each->left -= done, moved = 1;
    }
    if (!left) return SUCCESS;
    if (comm->aborted) return said[0] = 0, REMOTE;
    if (comm->lost) return snprintf(said, sizeof said, "the connection broke"), REMOTE;
    if (!moved) usleep(100);
  }
}
