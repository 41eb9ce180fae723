/* A random program over the driver, decided by a seed. It prints every call with its result and what it wrote, so that a run with the
 * limiter can be compared with a run without.
 *
 *   differential SEED STEPS WAY [SKIPPED [WORDS [END DESCRIPTOR]]]
 *
 * WAY: 0 dlsym, 1 cuGetProcAddress, 2 its per-thread form. SKIPPED: a file of step numbers. WORDS: `wide` for all kinds of step, with
 * multicast objects, descriptors without a mark and further processes; `external` for the steps about contexts and memory of other
 * interfaces alone; `usual` for what the first tier takes. A further process tells by the descriptor that it is done (END).
 *
 * Each step draws from a seed of its own, so that steps may be left out. Addresses and handles are printed as the number of the object
 * that they name: their values differ between runs. No address is used after it was freed (but at once, as a double free), for a later
 * allocation may have it. Integers and addresses are passed alike on x86-64 and arm64, so one signature does for all functions.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

typedef uint64_t word;
typedef int function(word, word, word, word, word, word, word, word, word, word, word, word, word, word);

enum { MOST = 12, STREAM_PER_THREAD = 2, ABSENT = -1000 };
#define UNTOUCHED 0x5afe5afe5afe5afeull
#define KIB 1024ull
#define MIB (KIB * KIB)
#define PAGE (2 * MIB)

enum kind {
    PHYSICAL, CONTEXT, STREAM, EVENT, POOL, ARRAY, MIPMAP, EXTERNAL, GRAPH, EXEC, NODE, /* handles: stale ones may be used */
    LINEAR, HOST, REGISTERED, PIECE, RANGE, MAPPING, OPENED, BUFFER, GRAPHED, TEAM, GREEN, KINDS
};
/* Kinds of step beside the usual ones. */
enum { WIDE = 1, EXTERNAL_MEMORY = 2 };
/* `size` in bytes, where it is known; `context` it was made in; `of` is its graph's number, or the device of physical memory. */
struct object { word value, size, context, of, number; };
static struct object live[KINDS][MOST];
static int count[KINDS];
static word stale[NODE + 1];
static word objects, step, state;
static word primary[2], idle[2], heap = 9 * MIB, stack = 1024;
static int way, words_taken;
static const char *self;
static char registered[MOST][8192] __attribute__((aligned(4096)));

static word next(void) { /* SplitMix64 */
    word z = state += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}
static word below(word end) { return next() % end; }
static int once_in(word times) { return below(times) == 0; }

/* --- calls */

static void *driver;

/* By cuGetProcAddress a function has its base name. Where a name means several revisions, dlsym finds the one that is meant. */
static function *find(const char *name) {
    static const char *exact[] = {"cuCtxCreate", "cuGraphInstantiate", "cuStreamBeginCapture", "cuMemPrefetchAsync", "cuIpcOpenMemHandle"};
    int (*ask)(const char *, void **, int, word, int *) = (void *)dlsym(driver, "cuGetProcAddress_v2");
    char base[64];
    void *found = NULL;
    int status = 0, is_exact = 0;
    snprintf(base, sizeof base, "%s", name);
    char *end = strstr(base, "_ptsz");
    if (end) *end = 0;
    if (strlen(base) > 3 && !strncmp(base + strlen(base) - 3, "_v", 2)) base[strlen(base) - 3] = 0;
    for (size_t i = 0; i < sizeof exact / sizeof *exact; i++) is_exact |= !strncmp(base, exact[i], strlen(exact[i]));
    if (way && !is_exact && !strstr(name, "_ptsz")) ask(base, &found, 12000, way == 2 ? 2 : 0, &status);
    return (function *)(found ? found : dlsym(driver, name));
}

static void say(word value) {
    if (value == UNTOUCHED) printf(" -");
    else printf(" %llx", (unsigned long long)value);
}

/* An object of these kinds, by its number; nothing else that differs between runs. */
static void name_from(enum kind first, word value) {
    if (value == UNTOUCHED || !value) return say(value);
    for (int device = 0; device < 2; device++)
        if (value == primary[device]) {
            printf(" primary%d", device);
            return;
        }
    for (int kind = first; kind < KINDS; kind++)
        for (int i = 0; i < count[kind]; i++)
            if (live[kind][i].value == value) {
                printf(" #%llu", (unsigned long long)live[kind][i].number);
                return;
            }
    printf(" ?");
}
static void name(word value) { name_from(PHYSICAL, value); }

/* An argument: an object, a number that is no address, or `?`. Handles of physical memory are small numbers, as sizes are. */
static void show(word value, int is_physical) {
    int is_stale = 0;
    int is_number = value < 4096 && !is_physical;
    for (int kind = is_physical ? PHYSICAL : PHYSICAL + 1; kind <= NODE; kind++) is_stale |= value && !is_number && value == stale[kind];
    if (is_stale) printf(" stale");
    else if (is_physical) name(value);
    else if (is_number || (value >= 64 * KIB && value < 1ull << 32) || value + 1 == 0) say(value);
    else name_from(PHYSICAL + 1, value);
}

static int run(function *at, const char *function, const word *a, int shown) {
    if (!at) return ABSENT;
    if (shown >= 0) {
        printf("\n%llu %s", (unsigned long long)step, function);
        int physical = !strcmp(function, "cuMemMap") ? 8 : !strcmp(function, "cuMemRelease") ? 1
                     : strstr("cuMemExportToShareableHandle cuMemGetAllocationPropertiesFromHandle", function) ? 2
                     : !strcmp(function, "cuMulticastBindMem") ? 5 : !strcmp(function, "cuMulticastBindMem_v2") ? 9
                     : !strncmp(function, "cuMulticast", 11) && strcmp(function, "cuMulticastCreate") ? 1 : 0;
        for (int i = 0; i < shown && i < 6; i++) show(a[i], physical >> i & 1);
    }
    int answer = at(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11], a[12], a[13]);
    if (shown >= 0) printf(" = %d", answer);
    return answer;
}

#define P(pointer) ((word)(uintptr_t)(pointer))
#define INVOKE(shown, name, ...) ({ \
    static function *at_; \
    static int known_; \
    word a_[14] = {__VA_ARGS__}; \
    if (!known_) at_ = find(#name), known_ = 1; \
    run(at_, #name, a_, shown); })
#define CALL(name, ...) INVOKE((int)(sizeof((word[]){__VA_ARGS__}) / sizeof(word)), name, __VA_ARGS__)
/* Of which the answer depends on time. */
#define QUIET(name, ...) INVOKE(-1, name, __VA_ARGS__)

/* A place for an answer, or now and then none. */
static word *place(word *at) {
    *at = UNTOUCHED;
    return once_in(60) ? NULL : at;
}

/* --- objects */

static word current(void) {
    word context = 0;
    QUIET(cuCtxGetCurrent, P(&context));
    return context;
}

/* What is made in a green context lives in its device's primary one. */
static word home(void) {
    word context = current();
    for (int i = 0; i < count[GREEN]; i++)
        if (context && live[GREEN][i].size == context) return primary[live[GREEN][i].of];
    return context;
}

static struct object *add(enum kind kind, word value, word size) {
    static struct object beyond;
    struct object made = {value, size, home(), 0, ++objects};
    printf(" =#%llu", (unsigned long long)objects);
    if (count[kind] == MOST) return &beyond;
    live[kind][count[kind]] = made;
    return &live[kind][count[kind]++];
}

static void drop(enum kind kind, int at) {
    if (kind <= NODE) stale[kind] = live[kind][at].value;
    live[kind][at] = live[kind][--count[kind]];
}

static void drop_value(enum kind kind, word value) {
    for (int i = count[kind]; i-- > 0;)
        if (live[kind][i].value == value) drop(kind, i);
}

/* Whatever has that address is freed. What a graph allocates keeps its address. */
static void freed(word value) {
    for (int kind = LINEAR; kind < GRAPHED; kind++)
        if (kind != RANGE && kind != MAPPING) drop_value(kind, value);
}

static void end_context(word context) {
    static const enum kind mortal[] = {STREAM, EVENT, ARRAY, MIPMAP, EXTERNAL, LINEAR, HOST, REGISTERED, OPENED, BUFFER};
    for (size_t m = 0; m < sizeof mortal / sizeof *mortal; m++)
        for (int i = count[mortal[m]]; i-- > 0;)
            if (live[mortal[m]][i].context == context) drop(mortal[m], i);
    drop_value(CONTEXT, context);
}

/* What an open capture has allocated is nothing until it becomes a graph. */
static void end_captures(word graph) {
    for (int i = count[GRAPHED]; i-- > 0;)
        if (!live[GRAPHED][i].of) {
            if (graph) live[GRAPHED][i].of = graph;
            else drop(GRAPHED, i);
        }
}

static struct object *pick(enum kind kind) { return count[kind] ? &live[kind][below(count[kind])] : NULL; }

/* What is known of that value, or of nothing. */
static struct object found(enum kind kind, word value) {
    struct object nothing = {0};
    for (int i = 0; i < count[kind]; i++)
        if (live[kind][i].value == value) return live[kind][i];
    return nothing;
}

/* A value for an argument of that kind: mostly a right one. */
static word use(enum kind kind) {
    static const word odd[] = {0, ~0ull, 1ull << 63, 0xdeadbeef};
    struct object *object = pick(kind);
    switch (below(28)) {
    case 0: return odd[below(4)];
    case 1: return kind <= NODE ? stale[kind] : 0;
    case 2: { /* not one of physical memory, which is a small number that may be another object's elsewhere */
        enum kind other = below(TEAM);
        object = pick(other == PHYSICAL ? kind : other);
        break;
    }
    case 3:
        if (kind > NODE && object) return object->value + 1;
    }
    return object ? object->value : 0;
}
static word captured;
static word stream(void) { return once_in(6) ? captured : once_in(3) ? below(3) : use(STREAM); }
static word device(void) { return once_in(30) ? (word)(int)(once_in(2) ? -1 : 7) : below(2); }

static word bytes(void) {
    switch (below(40)) {
    case 0: return 0;
    case 1: return ~0ull;
    case 2: return 1ull << 63;
    case 3: return (1ull << 40) + 1;
    case 4: return 1ull << 40;
    case 5: return (1ull << 46) + below(4096);
    case 6 ... 15: return 1 + below(4 * KIB);
    case 16 ... 25: return 1 + below(4 * MIB);
    default: return (1 + below(24)) * PAGE;
    }
}
static word pages(void) {
    word size = bytes();
    return once_in(8) ? size : (size % (48 * MIB) / PAGE + 1) * PAGE;
}

/* --- contexts */

static void look_at_primary(int at) {
    word flags = 0, active = 0;
    CALL(cuDevicePrimaryCtxGetState, at, P(&flags), P(&active));
    say((int)active);
    if (!(int)active && primary[at]) {
        end_context(primary[at]);
        primary[at] = 0;
    }
}
static void revive(void) {
    int at = below(2);
    word context = UNTOUCHED;
    if (!primary[at] && CALL(cuDevicePrimaryCtxRetain, P(&context), at) == 0) primary[at] = context;
    CALL(cuCtxSetCurrent, primary[at]);
}
static void retain_primary(void) {
    word context, at = device(), *to = place(&context);
    if (CALL(cuDevicePrimaryCtxRetain, P(to), at) == 0 && to) primary[at] = context;
    name(context);
}
static void release_primary(void) { CALL(cuDevicePrimaryCtxRelease_v2, device()), look_at_primary(0), look_at_primary(1); }
static void reset_primary(void) { CALL(cuDevicePrimaryCtxReset_v2, device()), look_at_primary(0), look_at_primary(1); }
static void create_context(void) {
    word context, *to = place(&context);
    if (count[CONTEXT] < 3 && CALL(cuCtxCreate_v2, P(to), once_in(20) ? 99 : 0, device()) == 0 && to) add(CONTEXT, context, 0);
}
static void destroy_context(void) {
    word context = use(CONTEXT);
    if (context == primary[0] || context == primary[1]) return;
    if (CALL(cuCtxDestroy_v2, context) == 0) end_context(context);
}
static void attach_context(void) {
    word context, *to = place(&context), now = current();
    struct object *made = NULL;
    for (int i = 0; i < count[CONTEXT]; i++)
        if (live[CONTEXT][i].value == now) made = &live[CONTEXT][i];
    if (!made) return;
    if (once_in(2)) {
        if (CALL(cuCtxAttach, P(to), 0) == 0) made->size++;
    } else if (CALL(cuCtxDetach, now) == 0 && made->size-- == 0) end_context(now);
}
static void change_context(void) {
    word context, *to = place(&context), given = once_in(3) ? primary[below(2)] : use(CONTEXT);
    switch (below(4)) {
    case 0: CALL(cuCtxPushCurrent_v2, given); break;
    case 1: CALL(cuCtxPopCurrent_v2, P(to)), name(context); break;
    default: CALL(cuCtxSetCurrent, given);
    }
}
static void ask_context(void) {
    word value, *to = place(&value);
    switch (below(8)) {
    case 0: CALL(cuCtxGetCurrent, P(to)), name(value); break;
    case 1: CALL(cuCtxGetDevice, P(to)), say(value); break;
    case 2: CALL(cuCtxGetFlags, P(to)), say(value); break;
    case 3: CALL(cuCtxGetApiVersion, use(CONTEXT), P(to)), say(value); break;
    case 4: CALL(cuCtxGetLimit, P(to), below(9)), say(value); break;
    case 5: CALL(cuCtxGetStreamPriorityRange, P(to), P(to)), say(value); break;
    case 6: CALL(cuDeviceGet, P(to), device()), say(value); break;
    default: CALL(cuDeviceGetAttribute, P(to), 1 + below(120), device()), say(value);
    }
}
/* Limits only grow: what the limiter was charged for one stays charged. */
static void set_limit(void) {
    word which = below(9), value = bytes();
    if (which == 2 && value < 1ull << 40) value = heap += below(MIB);
    if (which == 1 && value < 1ull << 40) value = heap - MIB;
    if (which == 0 && value < 1ull << 40) value = stack < 1536 ? stack += 16 : stack;
    CALL(cuCtxSetLimit, which, value);
}
static void synchronize(void) { CALL(cuCtxSynchronize, 0); }

/* Memory in use, beyond what was there at first; of use only when nothing is under way. */
static void ask_memory(void) {
    size_t free = 0, total = 0;
    word at = 0;
    if (once_in(20)) {
        word one, *to = place(&one);
        CALL(cuMemGetInfo_v2, P(to), P(NULL));
        return;
    }
    QUIET(cuCtxGetDevice, P(&at));
    int answer = CALL(cuCtxSynchronize, 0);
    if (CALL(cuMemGetInfo_v2, P(&free), P(&total)) == 0 && answer == 0) printf(" used %lld", (long long)(total - free - idle[at & 1]));
}

/* --- memory by address */

static void allocate(void) {
    word address, pitch, *to = place(&address), *row = place(&pitch), size = bytes(), flags = once_in(12) ? below(9) : 1;
    int answer = 1;
    if (count[LINEAR] == MOST) return;
    switch (below(4)) {
    case 0: answer = CALL(cuMemAllocManaged, P(to), size, flags); break;
    case 1: {
        static const word elements[] = {4, 8, 16, 3};
        word width = 1 + below(5000), height = 1 + below(1000), odd = bytes();
        if (odd >= 1ull << 40 || !odd) *(below(2) ? &width : &height) = odd;
        answer = CALL(cuMemAllocPitch_v2, P(to), P(row), width, height, elements[below(4)]);
        say(pitch);
        break;
    }
    default: answer = CALL(cuMemAlloc_v2, P(to), size);
    }
    if (address == UNTOUCHED) say(address);
    if (answer == 0 && to && address != UNTOUCHED) add(LINEAR, address, size);
}
static enum kind some_address(void) {
    static const enum kind kinds[] = {LINEAR, LINEAR, LINEAR, PIECE, PIECE, PIECE, GRAPHED, OPENED, HOST, MAPPING, BUFFER};
    return kinds[below(sizeof kinds / sizeof *kinds)];
}
static void give_back(void) {
    word address = use(some_address()), on = stream();
    int answer;
    switch (below(5)) {
    case 0: answer = CALL(cuMemFreeAsync, address, on); break;
    case 1: answer = CALL(cuMemFreeAsync_ptsz, address, on); break;
    default: answer = CALL(cuMemFree_v2, address);
    }
    if (answer == 0) freed(address);
    if (answer == 0 && once_in(6)) CALL(cuMemFree_v2, address);
}
static void ask_address(void) {
    static const word attributes[] = {2, 8, 9, 12, 13, 10};
    word base, size, *to = place(&base), address = use(some_address());
    struct object *object = pick(LINEAR);
    switch (below(5)) {
    case 0: CALL(cuMemGetAddressRange_v2, P(to), P(place(&size)), address), name(base), say(size); break;
    case 1: CALL(cuPointerGetAttribute, P(to), attributes[below(6)], address), base == UNTOUCHED ? say(base) : say((unsigned char)base); break;
    case 2: CALL(cuPointerSetAttribute, P(&(int){1}), once_in(3) ? below(12) : 6, address); break;
    case 3: if (object) CALL(cuMemAdvise_v2, object->value, object->size, 1 + below(6), 1 | below(2) << 32); break;
    default: if (object) CALL(cuMemPrefetchAsync, object->value, object->size, below(2), stream());
    }
}
static void copy(void) {
    static char host[4096];
    struct object *a = pick(below(2) ? LINEAR : PIECE), *b = pick(LINEAR);
    word most = a && b ? (a->size < b->size ? a->size : b->size) : 0, length = most > 4096 ? 4096 : most;
    if (!length) return;
    switch (below(8)) {
    case 0: CALL(cuMemsetD8_v2, a->value, below(256), length); break;
    case 1: CALL(cuMemsetD32_v2, a->value, below(256), length / 4); break;
    case 2: CALL(cuMemsetD8Async, a->value, 1, length, stream()); break;
    case 3: CALL(cuMemcpyHtoD_v2, a->value, P(host), length); break;
    case 4: CALL(cuMemcpyDtoH_v2, P(host), a->value, length); break;
    case 5: CALL(cuMemcpyDtoD_v2, b->value, a->value, length); break;
    case 6: CALL(cuMemcpyDtoDAsync_v2, b->value, a->value, length, stream()); break;
    default: CALL(cuMemcpyHtoDAsync_v2, a->value, P(host), length, stream());
    }
}
static void host(void) {
    word address, *to = place(&address), given = use(HOST);
    static int turn;
    int answer;
    switch (below(8)) {
    case 0:
    case 1:
        if (count[HOST] == MOST) return;
        answer = below(2) ? CALL(cuMemAllocHost_v2, P(to), bytes() % (8 * MIB)) : CALL(cuMemHostAlloc, P(to), bytes() % (8 * MIB), below(9));
        if (answer == 0 && to) add(HOST, address, 0);
        break;
    case 2:
        if (CALL(cuMemHostRegister_v2, P(registered[turn %= MOST]), 4096, below(4)) == 0) add(REGISTERED, P(registered[turn]), 0);
        turn++;
        break;
    case 3:
        given = use(REGISTERED);
        if (CALL(cuMemHostUnregister, given) == 0) freed(given);
        break;
    case 4: CALL(cuMemHostGetDevicePointer_v2, P(to), given, 0), name(address); break;
    case 5: CALL(cuMemHostGetFlags, P(to), given), say(address); break;
    default:
        if (CALL(cuMemFreeHost, given) == 0) freed(given);
    }
}

/* --- streams and events */

static void create_stream(void) {
    word made, *to = place(&made);
    if (count[STREAM] == MOST) return;
    int answer = below(2) ? CALL(cuStreamCreate, P(to), below(3)) : CALL(cuStreamCreateWithPriority, P(to), 1, 0);
    if (answer == 0 && to) add(STREAM, made, 0);
}
static void destroy_stream(void) {
    word given = use(STREAM);
    if (CALL(cuStreamDestroy_v2, given) == 0) drop_value(STREAM, given), end_captures(0);
}
static void ask_stream(void) {
    word value, *to = place(&value), on = stream();
    switch (below(7)) {
    case 0: CALL(cuStreamSynchronize, on); break;
    case 1: QUIET(cuStreamQuery, on); break;
    case 2: CALL(cuStreamGetCtx, on, P(to)), name(value); break;
    case 3: CALL(cuStreamGetFlags, on, P(to)), say(value); break;
    case 4: CALL(cuStreamGetPriority, on, P(to)), say(value); break;
    case 5: CALL(cuStreamWaitEvent, on, use(EVENT), 0); break;
    default: CALL(cuStreamIsCapturing, on, P(to)), say(value);
    }
}
static void event(void) {
    word made, *to = place(&made), given = use(EVENT);
    switch (below(6)) {
    case 0:
        if (count[EVENT] < MOST && CALL(cuEventCreate, P(to), below(3)) == 0 && to) add(EVENT, made, 0);
        break;
    case 1:
        if (CALL(cuEventDestroy_v2, given) == 0) drop_value(EVENT, given);
        break;
    case 2: CALL(cuEventSynchronize, given); break;
    case 3: QUIET(cuEventQuery, given); break;
    case 4: CALL(cuEventRecord_ptsz, given, stream()); break;
    default: CALL(cuEventRecord, given, stream());
    }
}
static void begin_capture(void) {
    word on = use(STREAM);
    if (CALL(cuStreamBeginCapture_v2, on, below(once_in(20) ? 5 : 3)) == 0) captured = on;
}
static void end_capture(void) {
    word graph, *to = place(&graph);
    int answer = CALL(cuStreamEndCapture, below(3) ? captured : use(STREAM), P(to));
    word made = answer == 0 && to ? add(GRAPH, graph, 0)->number : 0;
    if (answer == 0 || answer >= 900) end_captures(made);
}
static void exchange_mode(void) {
    word mode = below(once_in(20) ? 9 : 3), none = 0;
    CALL(cuThreadExchangeStreamCaptureMode, P(&mode)), say(mode);
    /* Mostly for a moment. */
    if (below(4)) CALL(cuThreadExchangeStreamCaptureMode, P(&none));
}
static void work(void) {
    static const char code[] = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry sim_busy_us_50()\n{\n    ret;\n}\n";
    word module = 0, kernel = 0;
    if (CALL(cuModuleLoadData, P(&module), P(code))) return;
    if (CALL(cuModuleGetFunction, P(&kernel), module, P("sim_busy_us_50")) == 0) CALL(cuLaunchKernel, kernel, 1, 1, 1, 1, 1, 1, 0, stream());
    if (below(2)) CALL(cuModuleUnload, module);
}

/* --- pools */

static void properties(word *words) { /* CUmemPoolProps */
    memset(words, 0, 11 * sizeof *words);
    words[0] = (once_in(20) ? below(4) : 1) | (once_in(3) ? 1ull << 32 : 0);
    words[1] = (once_in(20) ? below(6) : 1) | device() << 32;
    words[3] = once_in(6) ? below(8) * 16 * MIB : 0;
}
static void create_pool(void) {
    word pool, words[11], *to = place(&pool);
    properties(words);
    if (count[POOL] < 6 && CALL(cuMemPoolCreate, P(to), once_in(60) ? 0 : P(words)) == 0 && to) add(POOL, pool, 0);
}
static void destroy_pool(void) {
    word pool = use(POOL);
    if (CALL(cuMemPoolDestroy, pool) == 0) drop_value(POOL, pool);
}
static void default_pool(void) {
    word pool, *to = place(&pool), at = device();
    switch (below(3)) {
    case 0: CALL(cuDeviceGetMemPool, P(to), at), name(pool); break;
    case 1: CALL(cuDeviceGetDefaultMemPool, P(to), at), say(pool == UNTOUCHED ? pool : !!pool); break;
    default: CALL(cuDeviceSetMemPool, at, use(POOL));
    }
}
static word any_pool(void) {
    word pool = 0;
    if (once_in(4)) QUIET(cuDeviceGetDefaultMemPool, P(&pool), below(2));
    return pool ? pool : use(POOL);
}
static void ask_pool(void) {
    word value, *to = place(&value), words[3] = {1 | below(2) << 32, 3}, pool = any_pool();
    switch (below(6)) {
    case 0: value = once_in(2) ? ~0ull : below(4) * 32 * MIB, CALL(cuMemPoolSetAttribute, pool, 4, P(&value)); break;
    case 1: value = below(2), CALL(cuMemPoolSetAttribute, pool, 1 + below(8), P(&value)); break;
    case 2: CALL(cuMemPoolTrimTo, pool, once_in(8) ? bytes() : below(4) * 16 * MIB); break;
    case 3: CALL(cuMemPoolSetAccess, pool, P(words), below(2)); break;
    case 4: CALL(cuMemPoolGetAccess, P(to), pool, P(words)), say(value); break;
    default: CALL(cuMemPoolGetAttribute, pool, 1 + below(9), P(to)), say(value);
    }
}
static void allocate_pooled(void) {
    word address, *to = place(&address), size = bytes(), on = stream(), status = 0;
    int answer;
    if (count[PIECE] == MOST || count[GRAPHED] == MOST) return;
    switch (below(5)) {
    case 0: answer = CALL(cuMemAllocAsync, P(to), size, on); break;
    case 1: answer = CALL(cuMemAllocAsync_ptsz, P(to), size, on); break;
    case 2: answer = CALL(cuMemAllocFromPoolAsync_ptsz, P(to), size, any_pool(), on); break;
    default: answer = CALL(cuMemAllocFromPoolAsync, P(to), size, any_pool(), on);
    }
    if (address == UNTOUCHED) say(address);
    if (answer || !to) return;
    QUIET(cuStreamIsCapturing, on, P(&status));
    add((int)status ? GRAPHED : PIECE, address, size);
}
static void share_pool(void) {
    word value, *to = place(&value), data[8] = {0}, pool = use(POOL), mode = 2;
    static word exported[8];
    int descriptor = -1;
    switch (below(4)) {
    case 0:
        CALL(cuMemPoolExportToShareableHandle, P(&descriptor), pool, once_in(8) ? 2 : 1, 0), say(descriptor >= 0);
        if (count[POOL] < 6 && CALL(cuMemPoolImportFromShareableHandle, P(to), descriptor, 1, 0) == 0 && to) add(POOL, value, 0);
        if (descriptor >= 0) close(descriptor);
        break;
    case 1:
        if (CALL(cuMemPoolExportPointer, P(data), use(PIECE)) == 0) memcpy(exported, data, sizeof data);
        break;
    default: /* freed at once: what a process imports of its own pools is charged beside the pool */
        CALL(cuThreadExchangeStreamCaptureMode, P(&mode));
        if (CALL(cuMemPoolImportPointer, P(to), pool, P(exported)) == 0 && to) CALL(cuMemFree_v2, value);
        CALL(cuThreadExchangeStreamCaptureMode, P(&mode));
    }
}

/* --- memory by handle */

static void allocation(word *words) { /* CUmemAllocationProp */
    memset(words, 0, 4 * sizeof *words);
    words[0] = (once_in(20) ? below(3) : 1) | (once_in(3) ? 1ull << 32 : once_in(30) ? 7ull << 32 : 0);
    words[1] = (once_in(20) ? below(6) : 1) | device() << 32;
}
static void create_physical(void) {
    word handle, words[4], *to = place(&handle), size = pages();
    allocation(words);
    if (count[PHYSICAL] < MOST && CALL(cuMemCreate, P(to), size, once_in(60) ? 0 : P(words), once_in(30)) == 0 && to)
        add(PHYSICAL, handle, size)->of = words[1] >> 32;
}
static void release_physical(void) {
    word handle = use(PHYSICAL);
    int at = -1;
    if (CALL(cuMemRelease, handle)) return;
    for (int i = 0; i < count[PHYSICAL]; i++)
        if (live[PHYSICAL][i].value == handle) at = i;
    if (at >= 0) drop(PHYSICAL, at);
}
static void reserve(void) {
    word address, *to = place(&address), size = pages();
    if (count[RANGE] < MOST && CALL(cuMemAddressReserve, P(to), size, once_in(10) ? below(1 << 23) : 0, 0, 0) == 0 && to) add(RANGE, address, size);
}
static void unreserve(void) {
    struct object *range = pick(RANGE);
    if (!range) return;
    word address = range->value, size = once_in(10) ? bytes() : range->size;
    if (CALL(cuMemAddressFree, address, size) == 0) drop_value(RANGE, address);
}
static void map(void) {
    struct object *range = pick(RANGE), *handle = pick(PHYSICAL);
    if (!range || count[MAPPING] == MOST) return;
    word size = handle && below(8) ? handle->size : pages(), offset = once_in(12) ? pages() : 0, address = range->value + (once_in(8) ? PAGE : 0);
    word given = handle && below(8) ? handle->value : use(PHYSICAL);
    if (CALL(cuMemMap, address, size, offset, given, once_in(40)) == 0) add(MAPPING, address, size);
}
static void unmap(void) {
    struct object *mapping = pick(MAPPING);
    if (!mapping) return;
    word address = mapping->value, size = once_in(6) ? pages() : mapping->size;
    if (CALL(cuMemUnmap, address, size) == 0)
        for (int i = count[MAPPING]; i-- > 0;)
            if (live[MAPPING][i].value >= address && live[MAPPING][i].value < address + size) drop(MAPPING, i);
}
/* Takes off what the limiter puts on a descriptor. */
static void unmark(int descriptor) {
    struct flock all = {.l_type = F_UNLCK, .l_whence = SEEK_SET};
    if (descriptor >= 0) fcntl(descriptor, F_OFD_SETLK, &all);
}
static void ask_physical(void) {
    struct object *mapping = pick(MAPPING);
    word value, handle, words[4], *to = place(&value), access[2] = {1 | below(2) << 32, once_in(4) ? below(4) : 3};
    int descriptor = -1;
    switch (below(6)) {
    case 0: if (mapping) CALL(cuMemSetAccess, mapping->value, mapping->size, P(access), below(3)); break;
    case 1: if (mapping) CALL(cuMemGetAccess, P(to), P(access), mapping->value), say(value); break;
    case 2:
        if (count[PHYSICAL] < MOST && CALL(cuMemRetainAllocationHandle, P(to), mapping ? mapping->value : use(RANGE)) == 0 && to) {
            struct object same = found(PHYSICAL, value);
            name(value);
            add(PHYSICAL, value, same.size)->of = same.of;
        }
        break;
    case 3:
        handle = use(PHYSICAL);
        CALL(cuMemExportToShareableHandle, P(&descriptor), handle, once_in(8) ? 2 : 1, 0), say(descriptor >= 0);
        if (words_taken && once_in(2)) unmark(descriptor);
        if (count[PHYSICAL] < MOST && CALL(cuMemImportFromShareableHandle, P(to), descriptor, 1) == 0 && to) {
            struct object same = found(PHYSICAL, handle);
            add(PHYSICAL, value, same.size)->of = same.of;
        }
        if (descriptor >= 0) close(descriptor);
        break;
    case 4: allocation(words), CALL(cuMemGetAllocationGranularity, P(to), P(words), below(2)), say(value); break;
    default: words[0] = 0, CALL(cuMemGetAllocationPropertiesFromHandle, P(words), use(PHYSICAL)), say(words[0]);
    }
}
/* The limiter charges the size that the program gives, on the current device: both are right, or the size is more than any GPU has. */
static void import_external(void) {
    word value, *to = place(&value), handle = use(PHYSICAL), words[13] = {1}, part[10] = {0, PAGE}, memory = use(EXTERNAL);
    struct object physical = found(PHYSICAL, handle);
    int descriptor = -1, at = -1;
    switch (below(4)) {
    case 0:
        words[3] = physical.size;
        QUIET(cuCtxGetDevice, P(&at));
        if (!physical.size || (int)physical.of != at || CALL(cuMemExportToShareableHandle, P(&descriptor), handle, 1, 0)) return;
        words[1] = descriptor;
        if (once_in(8)) words[3] += 1ull << (40 + below(24));
        if (count[EXTERNAL] < MOST && CALL(cuImportExternalMemory, P(to), P(words)) == 0 && to) add(EXTERNAL, value, 0);
        else close(descriptor);
        break;
    case 1:
        if (count[BUFFER] < MOST && CALL(cuExternalMemoryGetMappedBuffer, P(to), memory, P(part)) == 0 && to)
            add(BUFFER, value, PAGE)->context = found(EXTERNAL, memory).context; /* it ends with that */
        break;
    default:
        if (CALL(cuDestroyExternalMemory, memory) == 0) drop_value(EXTERNAL, memory);
    }
}
/* Memory of another interface, which no function of the driver's made, and arrays in it. */
static void import_foreign(void) {
    word value, *to = place(&value), memory = use(EXTERNAL), given = use(MIPMAP);
    word words[13] = {1, 0, 0, (1 + below(16)) * PAGE}, array[15] = {once_in(8) ? PAGE : 0, 64, 64, 0, 1ull << 32 | 1, 0, 1};
    int descriptor;
    switch (below(4)) {
    case 0:
        if (count[EXTERNAL] == MOST) return;
        words[1] = descriptor = memfd_create("foreign", MFD_CLOEXEC);
        if (ftruncate(descriptor, words[3]) == 0 && CALL(cuImportExternalMemory, P(to), P(words)) == 0) {
            if (to) add(EXTERNAL, value, 0);
        } else close(descriptor);
        break;
    case 1:
        if (count[MIPMAP] < MOST && CALL(cuExternalMemoryGetMappedMipmappedArray, P(to), memory, P(array)) == 0 && to)
            add(MIPMAP, value, 0)->context = found(EXTERNAL, memory).context;
        break;
    case 2:
        if (CALL(cuMipmappedArrayDestroy, given) == 0) drop_value(MIPMAP, given);
        break;
    default:
        if (CALL(cuDestroyExternalMemory, memory) == 0) drop_value(EXTERNAL, memory);
    }
}
static void green(void) {
    static word room[64];
    word made, desc = 0, at = below(2);
    struct object *green = pick(GREEN);
    switch (below(4)) {
    case 0:
        if (count[GREEN] < 3 && QUIET(cuDeviceGetDevResource, at, P(room), 1) == 0 && QUIET(cuDevResourceGenerateDesc, P(&desc), P(room), 1) == 0 &&
            CALL(cuGreenCtxCreate, P(&made), desc, at, 1) == 0) {
            green = add(GREEN, made, 0);
            green->of = at;
            QUIET(cuCtxFromGreenCtx, P(&green->size), made);
        }
        break;
    case 1: if (green && CALL(cuCtxFromGreenCtx, P(&made), green->value) == 0) CALL(cuCtxSetCurrent, made); break;
    default:
        if (green && once_in(2) && CALL(cuGreenCtxDestroy, green->value) == 0) drop_value(GREEN, green->value);
    }
    look_at_primary(0), look_at_primary(1);
}

/* --- multicast objects */

static void team(void) {
    word made, *to = place(&made), properties[4] = {1 + below(2), 64 * MIB}, offset = below(8) * PAGE;
    struct object *team = pick(TEAM), *memory = pick(PHYSICAL), *mapping = pick(MAPPING);
    switch (below(9)) {
    case 0:
    case 1:
        if (count[TEAM] < MOST && CALL(cuMulticastCreate, P(to), P(properties)) == 0 && to) add(TEAM, made, properties[1])->of = properties[0];
        break;
    case 2:
    case 3:
        if (team) CALL(cuMulticastAddDevice, team->value, device());
        break;
    case 4: if (team && memory) CALL(cuMulticastBindMem, team->value, offset, memory->value, 0, memory->size, 0); break;
    case 5: if (team && memory) CALL(cuMulticastBindMem_v2, team->value, device(), offset, memory->value, 0, memory->size); break;
    case 6: if (team && mapping) CALL(cuMulticastBindAddr, team->value, offset, mapping->value, mapping->size, 0); break;
    case 7: if (team) CALL(cuMulticastUnbind, team->value, below(2), offset, (1 + below(16)) * PAGE); break;
    default:
        if (team && CALL(cuMemRelease, team->value) == 0) drop_value(TEAM, team->value);
    }
}

static void share_address(void) {
    static word handle[8];
    word value, *to = place(&value), words[8] = {0}, given = use(OPENED);
    switch (below(4)) {
    case 0:
        if (CALL(cuIpcGetMemHandle, P(words), use(some_address())) == 0) memcpy(handle, words, sizeof handle);
        break;
    case 1: /* by value */
#ifdef __x86_64__ /* on the stack, behind six registers (System V ABI for x86-64, 3.2.3) */
        if (CALL(cuIpcOpenMemHandle_v2, P(to), below(2), 0, 0, 0, 0, handle[0], handle[1], handle[2], handle[3], handle[4], handle[5], handle[6], handle[7]) == 0 && to)
#else /* a copy by its address (AAPCS64, 6.8.2) */
        if (CALL(cuIpcOpenMemHandle_v2, P(to), P(memcpy(words, handle, sizeof handle)), below(2)) == 0 && to)
#endif
            add(OPENED, value, 0);
        break;
    default:
        if (CALL(cuIpcCloseMemHandle, given) == 0) freed(given);
    }
}

/* --- arrays */

static void create_array(void) {
    word made, words[5] = {1 + below(2048), below(1024), below(8), 0x20 | (1ull << below(3)) << 32, once_in(8) ? below(256) : 0};
    word flat[3] = {words[0], words[1], words[3]}, *to = place(&made), levels = below(4);
    if (once_in(12)) words[below(3)] = 1ull << (40 + below(23));
    if (once_in(12)) words[3] = next();
    if (count[ARRAY] == MOST || count[MIPMAP] == MOST) return;
    switch (below(3)) {
    case 0:
        if (CALL(cuArrayCreate_v2, P(to), P(flat)) == 0 && to) add(ARRAY, made, 0);
        break;
    case 1:
        if (CALL(cuArray3DCreate_v2, P(to), once_in(60) ? 0 : P(words)) == 0 && to) add(ARRAY, made, 0);
        break;
    default:
        if (CALL(cuMipmappedArrayCreate, P(to), P(words), once_in(12) ? next() % 64 : levels) == 0 && to) add(MIPMAP, made, 0);
    }
}
static void destroy_array(void) {
    enum kind kind = below(2) ? ARRAY : MIPMAP;
    word given = use(kind);
    if ((kind == ARRAY ? CALL(cuArrayDestroy, given) : CALL(cuMipmappedArrayDestroy, given)) == 0) drop_value(kind, given);
}
static void ask_array(void) {
    word words[6] = {0};
    switch (below(3)) {
    case 0: CALL(cuArray3DGetDescriptor_v2, P(words), use(ARRAY)), say(words[0]), say(words[1]), say(words[3]); break;
    case 1: CALL(cuArrayGetMemoryRequirements, P(words), use(ARRAY), device()), say(words[0]), say(words[1]); break;
    default: CALL(cuMipmappedArrayGetMemoryRequirements, P(words), use(MIPMAP), device()), say(words[0]), say(words[1]);
    }
}

/* --- graphs */

static struct object *of_graph(enum kind kind, word graph) {
    for (int i = 0, from = below(MOST); i < MOST; i++) {
        int at = (from + i) % MOST;
        if (at < count[kind] && live[kind][at].of == graph) return &live[kind][at];
    }
    return NULL;
}
static void create_graph(void) {
    word made, *to = place(&made), given = use(GRAPH);
    if (count[GRAPH] == MOST) return;
    int answer = once_in(6) ? CALL(cuGraphClone, P(to), given) : CALL(cuGraphCreate, P(to), once_in(30));
    if (answer == 0 && to) add(GRAPH, made, 0);
}
static void add_node(void) {
    struct object *graph = pick(GRAPH), *before = graph ? of_graph(NODE, graph->number) : NULL, *memory;
    word made, *to = place(&made), words[15], after = before ? before->value : 0, handle = use(GRAPH);
    int answer;
    if (!graph || count[NODE] == MOST || count[GRAPHED] == MOST) return;
    if (below(8)) handle = graph->value;
    switch (below(5)) {
    case 0: answer = CALL(cuGraphAddEmptyNode, P(to), handle, P(&after), !!before); break;
    case 1:
        memory = of_graph(GRAPHED, graph->number);
        answer = CALL(cuGraphAddMemFreeNode, P(to), handle, P(&after), !!before, memory ? memory->value : use(GRAPHED));
        break;
    default:
        properties(words);
        words[11] = words[12] = 0, words[13] = bytes(), words[14] = UNTOUCHED;
        answer = CALL(cuGraphAddMemAllocNode, P(to), handle, P(&after), !!before, P(words));
        if (answer == 0 && to && handle == graph->value) add(GRAPHED, words[14], words[13])->of = graph->number;
    }
    if (answer == 0 && to && handle == graph->value) add(NODE, made, 0)->of = graph->number;
}
static void destroy_graph(void) {
    word given = use(GRAPH);
    if (CALL(cuGraphDestroy, given)) return;
    for (int i = 0; i < count[GRAPH]; i++)
        if (live[GRAPH][i].value == given) {
            struct object *dead;
            while ((dead = of_graph(NODE, live[GRAPH][i].number))) drop(NODE, dead - live[NODE]);
            while ((dead = of_graph(GRAPHED, live[GRAPH][i].number))) drop(GRAPHED, dead - live[GRAPHED]);
        }
    drop_value(GRAPH, given);
}
static void instantiate(void) {
    word made, *to = place(&made), given = use(GRAPH), words[4] = {once_in(4) ? 1 : 0};
    int answer;
    if (count[EXEC] == MOST) return;
    switch (below(3)) {
    case 0: answer = CALL(cuGraphInstantiate_v2, P(to), given, 0, 0, 0); break;
    case 1: answer = CALL(cuGraphInstantiateWithFlags, P(to), given, once_in(3) ? 1 : 0); break;
    default: answer = CALL(cuGraphInstantiateWithParams, P(to), given, P(words));
    }
    if (answer == 0 && to) add(EXEC, made, 0);
}
static void launch(void) {
    word given = use(EXEC), on = stream();
    switch (below(5)) {
    case 0: CALL(cuGraphUpload, given, on); break;
    case 1: CALL(cuGraphLaunch_ptsz, given, on); break;
    default: CALL(cuGraphLaunch, given, on);
    }
}
static void update_exec(void) {
    word words[4] = {0};
    CALL(cuGraphExecUpdate_v2, use(EXEC), use(GRAPH), P(words)), say((int)words[0]);
}
static void nest_graph(void) {
    struct object *graph = pick(GRAPH), *child = pick(GRAPH);
    word made, *to = place(&made);
    if (!graph || !child || graph == child || count[NODE] == MOST) return;
    if (CALL(cuGraphAddChildGraphNode, P(to), graph->value, 0, 0, child->value) == 0 && to) add(NODE, made, 0)->of = graph->number;
}
static void destroy_exec(void) {
    word given = use(EXEC);
    if (CALL(cuGraphExecDestroy, given) == 0) drop_value(EXEC, given);
}
static void graph_memory(void) {
    word value, *to = place(&value);
    if (once_in(2)) CALL(cuDeviceGraphMemTrim, device());
    else CALL(cuDeviceGetGraphMemAttribute, device(), below(5), P(to)), say(value);
}

/* --- what finds functions, and what says which devices there are */

static void look_up(void) {
    static const char *names[] = {"cuMemAlloc", "cuMemAllocAsync", "cuMemGetInfo", "cuGetProcAddress", "cuNothing", "cuLaunchKernel", "cuMemAlloc_v2", "", "cuGraphLaunch"};
    word found, status = UNTOUCHED, *to = place(&found);
    CALL(cuGetProcAddress_v2, P(names[below(9)]), P(to), 2000 + 10 * below(1150), below(4), P(&status)), say(status), say(found == UNTOUCHED ? found : !!found);
}
static void ask_device(void) {
    word words[4] = {0}, *to = place(words);
    switch (below(4)) {
    case 0: CALL(cuDeviceGetCount, P(to)), say(words[0]); break;
    case 1: CALL(cuDriverGetVersion, P(to)), say(words[0]); break;
    case 2: CALL(cuDeviceCanAccessPeer, P(to), device(), device()), say(words[0]); break;
    default: CALL(cuDeviceTotalMem_v2, P(to), device());
    }
}

/* --- further processes */

/* A run of this program of its own, which says nothing. It ends by itself, ends in a PID namespace of its own, is killed, or becomes a
 * program without CUDA. Whatever it held is there again. */
static void run_another(void) {
    char numbers[4][24], path[32], status[64] = "";
    int end = (int)below(4), told[2];
    if (pipe2(told, O_CLOEXEC)) return;
    fflush(stdout);
    pid_t child = fork();
    if (!child) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (end == 1) {
            if (unshare(CLONE_NEWPID) && unshare(CLONE_NEWUSER | CLONE_NEWPID)) _exit(0);
            pid_t inner = fork();
            if (inner) {
                close(told[1]);
                waitpid(inner, NULL, 0);
                _exit(0);
            }
        }
        word figures[4] = {state, 40, way, dup(told[1])};
        for (int i = 0; i < 4; i++) snprintf(numbers[i], sizeof numbers[i], "%llu", (unsigned long long)figures[i]);
        int nothing = open("/dev/null", O_RDWR);
        dup2(nothing, 1);
        execl(self, "differential", numbers[0], numbers[1], numbers[2], "/dev/null", "usual", (char *[]){"ends", "ends", "waits", "becomes"}[end],
              numbers[3], NULL);
        _exit(1);
    }
    close(told[1]);
    printf("\n%llu another %d", (unsigned long long)step, end);
    if (read(told[0], path, 1) < 0) return;
    close(told[0]);
    snprintf(path, sizeof path, "/proc/%d/stat", child);
    /* It sleeps: the kernel drops the locks of closed files once the new program begins to run. */
    while (end == 3 && !strstr(status, "(sleep) S")) {
        int file = open(path, O_RDONLY | O_CLOEXEC);
        ssize_t length = read(file, status, sizeof status - 1);
        close(file);
        if (length < 0) break;
        status[length] = 0;
    }
    if (end == 3) ask_memory();
    if (end >= 2) kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    ask_memory();
}
/* What such a run does when it is through. */
static void end_as(const char *end, int descriptor) {
    fcntl(descriptor, F_SETFD, FD_CLOEXEC);
    if (!strcmp(end, "ends")) _exit(0);
    if (!strcmp(end, "becomes")) execl("/bin/sleep", "sleep", "1000", NULL);
    if (write(descriptor, "", 1) == 1) pause();
    _exit(1);
}

static const struct { int weight; void (*take)(void); int words; } steps[] = {
    {2, retain_primary, EXTERNAL_MEMORY}, {1, release_primary, EXTERNAL_MEMORY}, {1, reset_primary, EXTERNAL_MEMORY},
    {2, create_context, EXTERNAL_MEMORY}, {1, destroy_context, EXTERNAL_MEMORY}, {1, attach_context, EXTERNAL_MEMORY},
    {4, change_context, EXTERNAL_MEMORY}, {3, ask_context}, {3, set_limit}, {10, synchronize, EXTERNAL_MEMORY}, {12, ask_memory, EXTERNAL_MEMORY}, {24, allocate}, {24, give_back, EXTERNAL_MEMORY}, {8, ask_address}, {6, copy}, {8, host},
    {6, create_stream}, {4, destroy_stream}, {8, ask_stream}, {8, event}, {3, begin_capture}, {6, end_capture}, {1, exchange_mode}, {1, work},
    {8, create_pool}, {6, destroy_pool}, {4, default_pool}, {12, ask_pool}, {26, allocate_pooled}, {8, share_pool}, {12, create_physical, EXTERNAL_MEMORY},
    {10, release_physical, EXTERNAL_MEMORY}, {6, reserve, EXTERNAL_MEMORY}, {3, unreserve}, {10, map, EXTERNAL_MEMORY}, {8, unmap, EXTERNAL_MEMORY},
    {8, ask_physical, EXTERNAL_MEMORY}, {3, import_external, EXTERNAL_MEMORY}, {4, share_address},
    {10, create_array}, {9, destroy_array}, {3, ask_array}, {6, create_graph}, {10, add_node}, {4, destroy_graph}, {6, instantiate}, {10, launch},
    {4, destroy_exec}, {2, update_exec}, {2, nest_graph}, {3, graph_memory}, {2, look_up}, {2, ask_device},
    {24, import_foreign, EXTERNAL_MEMORY | WIDE}, {4, green, EXTERNAL_MEMORY | WIDE}, {16, team, WIDE}, {1, run_another, WIDE},
};

/* Each program takes some kinds of step more often than others do, and leaves some out. */
static int weights[sizeof steps / sizeof *steps], total;
static void weigh(word seed) {
    static const int factors[] = {0, 1, 1, 1, 4};
    state = seed;
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        int is_needed = steps[i].take == ask_memory || steps[i].take == give_back;
        int factor = seed % 3 && !is_needed ? factors[below(5)] : 1;
        int takes = words_taken == EXTERNAL_MEMORY ? steps[i].words & EXTERNAL_MEMORY : !(steps[i].words & WIDE) || words_taken == WIDE;
        total += weights[i] = takes ? steps[i].weight * factor : 0;
    }
}

static void take(void) {
    int at = -1, is_current;
    word ignored;
    is_current = QUIET(cuCtxGetDevice, P(&ignored)) == 0;
    if (!is_current && below(3)) revive();
    int chosen = (int)below(total);
    while (chosen >= 0) chosen -= weights[++at];
    steps[at].take();
}

int main(int arguments, char **argument) {
    word seed = arguments > 1 ? strtoull(argument[1], NULL, 0) : 0, last = arguments > 2 ? strtoull(argument[2], NULL, 0) : 1000;
    char *skipped = calloc(last + 1, 1);
    way = arguments > 3 ? atoi(argument[3]) : 0;
    self = "/proc/self/exe";
    if (arguments > 5) words_taken = !strcmp(argument[5], "wide") ? WIDE : !strcmp(argument[5], "external") ? EXTERNAL_MEMORY : 0;
    driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (!driver) return fprintf(stderr, "differential: %s\n", dlerror()), 3;
    FILE *list = arguments > 4 ? fopen(argument[4], "r") : NULL;
    for (unsigned long number; list && fscanf(list, "%lu", &number) == 1;)
        if (number <= last) skipped[number] = 1;
    weigh(seed);
    CALL(cuInit, 0);
    for (int at = 0; at < 2; at++) {
        size_t free = 0, total = 0;
        QUIET(cuDevicePrimaryCtxRetain, P(&primary[at]), at);
        QUIET(cuCtxSetCurrent, primary[at]);
        QUIET(cuMemGetInfo_v2, P(&free), P(&total));
        idle[at] = total - free;
    }
    for (step = 1; step <= last; step++) {
        state = seed * 0x9e3779b97f4a7c15ull ^ step * 0xd1342543de82ef95ull;
        if (!skipped[step]) take();
    }
    printf("\nend\n");
    if (arguments > 7) end_as(argument[6], atoi(argument[7]));
    return 0;
}
