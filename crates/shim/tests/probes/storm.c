/* A storm: processes of one slice that take memory of every family, share it, and are stopped and killed meanwhile.
 *
 * storm SECONDS SEED PROCESSES MOST FAMILY...   MOST is the largest block in bytes. Families: linear pitch managed array
 * vmm pool ipc handle reset multicast untagged exec namespace. Answers `kills stops granted refused other`: how often a process was killed and stopped, and how
 * often the driver's functions granted memory, answered OUT_OF_MEMORY, and answered anything else.
 *
 * The first process uses no GPU. It forks the others, and sends the signals.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cuda.h"

#define DECLARE(name, base, version, flags, type, parameters) static type (*name) parameters;
CUDA(DECLARE)

enum family { LINEAR, PITCH, MANAGED, ARRAY, VMM, POOL, IPC, HANDLE, RESET, MULTICAST, UNTAGGED, EXEC, NAMESPACE, FAMILIES };
static const char *families[FAMILIES] = {"linear", "pitch", "managed", "array", "vmm", "pool", "ipc", "handle", "reset",
                                         "multicast", "untagged", "exec", "namespace"};

enum { MOST_PROCESSES = 64, OFFERS = 32, BLOCKS = 24, OUT_OF_MEMORY = 2 };

/* What one process has taken. */
enum kind { DEVICE, ARRAY_OF, PHYSICAL, POOLED, OPENED };
struct block { enum kind kind; uint64_t at; };

/* What all processes see. */
static struct shared {
    atomic_ulong granted, refused, other;
    struct offer { atomic_uint turn; ipc_handle handle; } offers[OFFERS];
} *shared;

static int chosen[FAMILIES], choices, post[2], has_namespaces;
static size_t most;
static unsigned seed;
static struct block blocks[BLOCKS];
static int held;
static void *pool;

static unsigned draw(unsigned below) { return rand_r(&seed) % below; }

static int counted(result answer) {
    if (!answer) shared->granted++;
    else if (answer == OUT_OF_MEMORY) shared->refused++;
    else shared->other++;
    return answer;
}

static void let_go(int at) {
    struct block block = blocks[at];
    blocks[at] = blocks[--held];
    switch (block.kind) {
    case DEVICE: cuMemFree_v2(block.at); break;
    case ARRAY_OF: cuArrayDestroy((void *)block.at); break;
    case PHYSICAL: cuMemRelease(block.at); break;
    case POOLED: cuMemFreeAsync(block.at, NULL); break;
    case OPENED: cuIpcCloseMemHandle(block.at); break;
    }
}

static void keep(result answer, enum kind kind, const uint64_t *at) {
    if (counted(answer)) {
        if (answer == OUT_OF_MEMORY)
            while (held > BLOCKS / 4) let_go(draw(held));
        return;
    }
    blocks[held++] = (struct block){kind, *at};
    if (held == BLOCKS) let_go(draw(held));
}

static int any(enum kind kind) {
    for (int tries = 0; held && tries < 4; tries++) {
        int at = draw(held);
        if (blocks[at].kind == kind) return at;
    }
    return -1;
}

/* Offers a block of one's own to the others, or opens one of theirs. */
static void exchange(void) {
    struct offer *offer = &shared->offers[draw(OFFERS)];
    ipc_handle handle;
    int own = any(DEVICE);
    if (own >= 0 && draw(2)) {
        if (cuIpcGetMemHandle(&handle, blocks[own].at)) return;
        unsigned turn = offer->turn;
        if (turn % 2 || !atomic_compare_exchange_strong(&offer->turn, &turn, turn + 1)) return;
        offer->handle = handle;
        offer->turn = turn + 2;
        if (draw(2)) return;
        usleep(draw(100)); /* and it is freed while others open it */
        if (own < held) let_go(own);
    } else {
        unsigned turn = offer->turn;
        uint64_t at = 0;
        handle = offer->handle;
        if (!turn || turn % 2 || offer->turn != turn) return;
        keep(cuIpcOpenMemHandle_v2(&at, handle, 1), OPENED, &at);
    }
}

/* The same with physical memory, by descriptor, of which the limiter's mark may be taken off. */
static void pass(size_t bytes, int is_tagged) {
    char byte = 0, room[CMSG_SPACE(sizeof(int))] __attribute__((aligned(8))) = {0};
    struct iovec data = {&byte, 1};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    uint64_t handle = 0;
    if (draw(2)) {
        allocation_prop prop = {.type = 1, .handle_types = 1, .where = {1, 0}};
        result answer = cuMemCreate(&handle, bytes, &prop, 0);
        int descriptor = -1;
        if (!answer && !cuMemExportToShareableHandle(&descriptor, handle, 1, 0)) {
            struct flock all = {.l_type = F_UNLCK, .l_whence = SEEK_SET};
            if (!is_tagged) fcntl(descriptor, F_OFD_SETLK, &all);
            header->cmsg_level = SOL_SOCKET;
            header->cmsg_type = SCM_RIGHTS;
            header->cmsg_len = CMSG_LEN(sizeof(int));
            memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
            sendmsg(post[0], &message, MSG_DONTWAIT);
            close(descriptor);
        }
        keep(answer, PHYSICAL, &handle);
    } else if (recvmsg(post[1], &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) == 1 && (header = CMSG_FIRSTHDR(&message))) {
        int descriptor;
        memcpy(&descriptor, CMSG_DATA(header), sizeof descriptor);
        keep(cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)descriptor, 1), PHYSICAL, &handle);
        close(descriptor);
    }
}

/* Memory that a multicast object holds: its handle is released at once, or half the time unbound again. */
static void gather(size_t bytes) {
    allocation_prop prop = {.type = 1, .where = {1, 0}};
    uint64_t team = 0, handle = 0, of[4] = {1, bytes};
    if (cuMulticastCreate(&team, of) || cuMulticastAddDevice(team, 0)) return;
    result answer = cuMemCreate(&handle, bytes, &prop, 0);
    if (!answer) {
        counted(cuMulticastBindMem(team, 0, handle, 0, bytes, 0));
        cuMemRelease(handle);
        if (draw(2)) cuMulticastUnbind(team, 0, 0, bytes);
    } else {
        cuMemRelease(team);
    }
    keep(answer, PHYSICAL, &team);
}

/* A context may have to wait for room. */
static void enter(void) {
    void *context = NULL;
    while (cuDevicePrimaryCtxRetain(&context, 0)) usleep(1000);
    cuCtxSetCurrent(context);
}

static void take(enum family family, size_t bytes) {
    allocation_prop prop = {.type = 1, .where = {1, 0}};
    array_v2 flat = {1 << 16, bytes >> 20, 0x20, 4}; /* elements of 16 bytes */
    uint64_t at = 0;
    size_t pitch;
    void *array = NULL;
    result answer;
    switch (family) {
    case LINEAR: keep(cuMemAlloc_v2(&at, bytes), DEVICE, &at); break;
    case PITCH: keep(cuMemAllocPitch_v2(&at, &pitch, 1 << 20, bytes >> 20, 4), DEVICE, &at); break;
    case MANAGED: keep(cuMemAllocManaged(&at, bytes, 1), DEVICE, &at); break;
    case ARRAY: keep(cuArrayCreate_v2(&array, &flat), ARRAY_OF, (uint64_t *)&array); break;
    case VMM: keep(cuMemCreate(&at, bytes, &prop, 0), PHYSICAL, &at); break;
    case POOL:
        if (draw(4)) answer = cuMemAllocAsync(&at, bytes, NULL);
        else answer = cuMemAllocFromPoolAsync(&at, bytes, pool, NULL);
        keep(answer, POOLED, &at);
        if (!draw(8)) cuStreamSynchronize(NULL);
        break;
    case IPC: exchange(); break;
    case HANDLE: pass(bytes, 1); break;
    case UNTAGGED: pass(bytes, 0); break;
    case MULTICAST: gather(bytes); break;
    case NAMESPACE: break;
    case EXEC:
        if (!draw(256)) execl("/bin/sleep", "sleep", "1000", NULL);
        break;
    default:
        if (draw(64)) break;
        for (int at = 0; at < held;)
            if (blocks[at].kind == PHYSICAL) at++;
            else blocks[at] = blocks[--held]; /* it ends with the context */
        cuDevicePrimaryCtxReset_v2(0);
        enter();
    }
}

/* One process, until it is killed. */
static void rage(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
#define FIND(name, base, version, flags, type, parameters) *(void **)&name = dlsym(driver, #name);
    CUDA(FIND)
    if (!driver || cuInit(0)) _exit(3);
    enter();
    pool_props props = {.type = 1, .where = {1, 0}};
    if (cuMemPoolCreate(&pool, &props)) _exit(4);
    for (;;) {
        if (held && draw(5) < 2) let_go(draw(held));
        else take(chosen[draw(choices)], (1 + draw(most >> 21)) << 21);
    }
}

static pid_t start(void) {
    seed += 0x9e3779b9u;
    fflush(stdout);
    pid_t child = fork();
    if (child) return child;
    if (has_namespaces && draw(2) && (!unshare(CLONE_NEWPID) || !unshare(CLONE_NEWUSER | CLONE_NEWPID))) {
        int alive[2];
        char byte;
        if (pipe2(alive, O_CLOEXEC | O_NONBLOCK)) _exit(7);
        pid_t inner = fork();
        if (inner) {
            waitpid(inner, NULL, 0);
            _exit(6);
        }
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(alive[1]);
        if (!read(alive[0], &byte, 1)) _exit(8); /* it was killed before that */
    }
    rage();
    return 0;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

int main(int count, char **words) {
    if (count < 6) return 2;
    double end = now() + atof(words[1]);
    int processes = atoi(words[3]), is_stopped[MOST_PROCESSES] = {0}, stopped = 0;
    unsigned long kills = 0, stops = 0;
    pid_t children[MOST_PROCESSES];
    seed = strtoul(words[2], NULL, 0);
    most = strtoull(words[4], NULL, 0);
    for (int word = 5; word < count; word++)
        for (int family = 0; family < FAMILIES; family++)
            if (!strcmp(families[family], words[word])) {
                chosen[choices++] = family;
                has_namespaces |= family == NAMESPACE;
            }
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (choices != count - 5 || processes < 1 || processes > MOST_PROCESSES || shared == MAP_FAILED) return 2;
    if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, post)) return 2;
    for (int at = 0; at < processes; at++) children[at] = start();
    unsigned own = seed;
    while (now() < end) {
        usleep(2000 + rand_r(&own) % 8000);
        int at = rand_r(&own) % processes;
        if (is_stopped[at]) {
            kill(children[at], SIGCONT);
            is_stopped[at] = 0;
            stopped--;
        } else if (rand_r(&own) % 2 && stopped < processes / 2) {
            kill(children[at], SIGSTOP);
            is_stopped[at] = 1;
            stopped++;
            stops++;
        } else {
            int status = 0;
            kill(children[at], SIGKILL);
            waitpid(children[at], &status, 0);
            if (!WIFSIGNALED(status)) return 5; /* it ended by itself */
            kills++;
            children[at] = start();
        }
    }
    for (int at = 0; at < processes; at++) {
        kill(children[at], SIGKILL);
        waitpid(children[at], NULL, 0);
    }
    printf("%lu %lu %lu %lu %lu\n", kills, stops, shared->granted, shared->refused, shared->other);
    return 0;
}
