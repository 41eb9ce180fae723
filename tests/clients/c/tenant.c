/* tenant [GPU]: a tenant of its first GPU, or of that one. Gives it work in one of several ways, on commands from stdin, one a line;
 * answers one line each, of numbers, and one when it is ready. Kernels are the simulator's: named after the time they take.
 *
 *   launch US N          N kernels of US microseconds, without waiting                     -> 0
 *   hold US              one kernel                                  -> 0 when it is launched, and 0 when it has ended
 *   sync                 waits for all of them                                             -> 0
 *   captured US N        N kernels captured into a graph, which is then launched           -> 0
 *   loop US THINK T      one kernel, wait, think for THINK microseconds; for T ms          -> kernels, p50 us, p99 us
 *   flood US T           kernels as fast as they are taken; for T ms, or with 0 until the next line; not until they end -> kernels
 *   graphs US NODES T    a graph of NODES kernels in a row, launched as a flood; for T ms  -> kernels
 *   burst US WORK REST T a flood of WORK ms of kernels, a rest of REST ms; for T ms        -> kernels
 *   ranks US T           a collective of two ranks, one a GPU, the second US microseconds late; for T ms  -> collectives
 *   meet US N            N times a kernel of US microseconds, then a collective with another process that does so -> ms
 *   buckets START        how many kernels were made in each tenth of a second since START  -> numbers
 *   gap FROM TO          the longest time without a kernel made between these moments, in ms    -> us
 *   clock                                                                                  -> milliseconds of CLOCK_BOOTTIME
 *   stop                 (nothing: it ends what goes on until the next line)
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void *function(void *library, const char *name) {
    void *found = dlsym(library, name);
    if (!found) fprintf(stderr, "tenant: no %s\n", name), exit(1);
    return found;
}

#define CHECK(call) check(call, #call)
static void check(int result, const char *what) {
    if (result) fprintf(stderr, "tenant: %s answered %d\n", what, result), exit(1);
}

static int (*init)(unsigned), (*retain)(void **, int), (*set_current)(void *), (*load)(void **, const void *);
static int (*get)(void **, void *, const char *), (*stream_create)(void **, unsigned), (*synchronise)(void *);
static int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
static int (*begin)(void *, int), (*end)(void *, void **), (*instantiate)(void **, void *, unsigned long long);
static int (*launch_graph)(void *, void *);

static void *stream;

enum { TENTHS = 10 * 3600, LATEST = 1 << 20 };
static uint64_t opened;
static uint32_t made[TENTHS];
/* When the latest kernels were made, in microseconds since it was opened. */
static uint32_t made_at[LATEST];
static size_t made_in_all;

static uint64_t now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_BOOTTIME, &t);
    return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000;
}

static void count(unsigned kernels) {
    uint64_t tenth = (now_us() - opened) / 100000;
    if (tenth < TENTHS) made[tenth] += kernels;
    made_at[made_in_all++ % LATEST] = now_us() - opened;
}

static void gap(uint64_t from, uint64_t to) {
    uint64_t last = from * 1000, longest = 0;
    for (size_t i = made_in_all > LATEST ? made_in_all - LATEST : 0; i < made_in_all; i++) {
        uint64_t at = opened + made_at[i % LATEST];
        if (at < last || at > to * 1000) continue;
        if (at - last > longest) longest = at - last;
        last = at;
    }
    if (to * 1000 > last + longest) longest = to * 1000 - last;
    printf("%lu\n", (unsigned long)longest);
}

static void sleep_us(uint64_t us) {
    struct timespec t = {.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000};
    if (us) nanosleep(&t, NULL);
}

static void *kernel(unsigned us) {
    static struct { unsigned us; void *function; } known[64];
    for (int i = 0; i < 64; i++) {
        if (known[i].function && known[i].us == us) return known[i].function;
        if (known[i].function) continue;
        char name[64], text[256];
        snprintf(name, sizeof name, "sim_busy_us_%u", us);
        snprintf(text, sizeof text, ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry %s()\n{\n\tret;\n}\n", name);
        void *module;
        CHECK(load(&module, text));
        CHECK(get(&known[i].function, module, name));
        known[i].us = us;
        return known[i].function;
    }
    fprintf(stderr, "tenant: too many kernels\n"), exit(1);
}

static void one(unsigned us) {
    CHECK(launch(kernel(us), 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
}

static void *graph(unsigned us, unsigned nodes) {
    void *made, *executable;
    kernel(us); /* nothing can be loaded while a stream is captured */
    CHECK(begin(stream, 1));
    for (unsigned i = 0; i < nodes; i++) one(us);
    CHECK(end(stream, &made));
    CHECK(instantiate(&executable, made, 0));
    return executable;
}

static int ascending(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static void loop(unsigned us, unsigned think, unsigned long ms) {
    enum { MOST = 1 << 20 };
    static uint32_t took[MOST];
    size_t n = 0;
    for (uint64_t stop = now_us() + ms * 1000, start; (start = now_us()) < stop; sleep_us(think)) {
        one(us);
        CHECK(synchronise(stream));
        count(1);
        if (n < MOST) took[n++] = now_us() - start;
    }
    qsort(took, n, sizeof *took, ascending);
    printf("%zu %u %u\n", n, n ? took[n / 2] : 0, n ? took[n * 99 / 100] : 0);
}

static int next_line_is_there(void) {
    struct pollfd in = {.fd = 0, .events = POLLIN};
    return poll(&in, 1, 0) != 0;
}

static void flood(unsigned us, unsigned long ms) {
    unsigned long n = 0;
    for (uint64_t stop = now_us() + ms * 1000; ms ? now_us() < stop : !next_line_is_there(); n++) one(us), count(1);
    printf("%lu\n", n);
}

static void graphs(unsigned us, unsigned nodes, unsigned long ms) {
    unsigned long n = 0;
    void *executable = graph(us, nodes);
    for (uint64_t stop = now_us() + ms * 1000; now_us() < stop; n += nodes)
        CHECK(launch_graph(executable, stream)), count(nodes);
    CHECK(synchronise(stream));
    printf("%lu\n", n);
}

static void burst(unsigned us, unsigned work, unsigned rest, unsigned long ms) {
    unsigned long n = 0;
    for (uint64_t stop = now_us() + ms * 1000; now_us() < stop; sleep_us(rest * 1000)) {
        for (unsigned long done = 0; done < work * 1000; done += us, n++) one(us), count(1);
        CHECK(synchronise(stream));
    }
    printf("%lu\n", n);
}

static void *rank(void *context, void **on) {
    static const char text[] =
        ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry sim_rendezvous_2()\n{\n\tret;\n}\n";
    void *module, *function;
    CHECK(set_current(context));
    CHECK(stream_create(on, 1));
    CHECK(load(&module, text));
    CHECK(get(&function, module, "sim_rendezvous_2"));
    return function;
}

static void ranks(void *first, unsigned late, unsigned long ms) {
    void *second, *streams[2], *kernels[2];
    CHECK(retain(&second, 1));
    void *contexts[2] = {first, second};
    for (int i = 0; i < 2; i++) kernels[i] = rank(contexts[i], &streams[i]);
    unsigned long n = 0;
    for (uint64_t stop = now_us() + ms * 1000; now_us() < stop; n++, count(1)) {
        for (int i = 0; i < 2; i++) {
            CHECK(set_current(contexts[i]));
            CHECK(launch(kernels[i], 1, 1, 1, 1, 1, 1, 0, streams[i], NULL, NULL));
            if (!i) sleep_us(late);
        }
        for (int i = 0; i < 2; i++) {
            CHECK(set_current(contexts[i]));
            CHECK(synchronise(streams[i]));
        }
    }
    CHECK(set_current(first));
    printf("%lu\n", n);
}

/* One rank of a collective; the other is a process of its own, on another GPU. */
static void meet(void *context, unsigned us, unsigned n) {
    void *own, *function = rank(context, &own);
    uint64_t start = now_us();
    for (kernel(us); n--; count(1)) {
        CHECK(launch(kernel(us), 1, 1, 1, 1, 1, 1, 0, own, NULL, NULL));
        CHECK(launch(function, 1, 1, 1, 1, 1, 1, 0, own, NULL, NULL));
        CHECK(synchronise(own));
    }
    printf("%lu\n", (unsigned long)((now_us() - start) / 1000));
}

int main(int words, char **word) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), *context;
    if (!library) return fprintf(stderr, "tenant: %s\n", dlerror()), 1;
    init = function(library, "cuInit");
    retain = function(library, "cuDevicePrimaryCtxRetain");
    set_current = function(library, "cuCtxSetCurrent");
    load = function(library, "cuModuleLoadData");
    get = function(library, "cuModuleGetFunction");
    stream_create = function(library, "cuStreamCreate");
    synchronise = function(library, "cuStreamSynchronize");
    launch = function(library, "cuLaunchKernel");
    begin = function(library, "cuStreamBeginCapture_v2");
    end = function(library, "cuStreamEndCapture");
    instantiate = function(library, "cuGraphInstantiateWithFlags");
    launch_graph = function(library, "cuGraphLaunch");
    CHECK(init(0));
    CHECK(retain(&context, words > 1 ? atoi(word[1]) : 0));
    CHECK(set_current(context));
    CHECK(stream_create(&stream, 1));
    opened = now_us();
    puts("0");
    fflush(stdout);

    char line[256];
    while (fgets(line, sizeof line, stdin)) {
        unsigned us, a, b;
        unsigned long t;
        uint64_t from, to;
        if (sscanf(line, "launch %u %u", &us, &a) == 2) {
            while (a--) one(us), count(1);
            puts("0");
        } else if (sscanf(line, "hold %u", &us) == 1) {
            one(us), count(1);
            puts("0");
            fflush(stdout);
            CHECK(synchronise(stream));
            puts("0");
        } else if (!strncmp(line, "stop", 4)) {
            continue;
        } else if (!strncmp(line, "sync", 4)) {
            CHECK(synchronise(stream));
            puts("0");
        } else if (sscanf(line, "captured %u %u", &us, &a) == 2) {
            CHECK(launch_graph(graph(us, a), stream));
            puts("0");
        } else if (sscanf(line, "loop %u %u %lu", &us, &a, &t) == 3) {
            loop(us, a, t);
        } else if (sscanf(line, "flood %u %lu", &us, &t) == 2) {
            flood(us, t);
        } else if (sscanf(line, "graphs %u %u %lu", &us, &a, &t) == 3) {
            graphs(us, a, t);
        } else if (sscanf(line, "ranks %u %lu", &a, &t) == 2) {
            ranks(context, a, t);
        } else if (sscanf(line, "meet %u %u", &us, &a) == 2) {
            meet(context, us, a);
        } else if (sscanf(line, "gap %lu %lu", &from, &to) == 2) {
            gap(from, to);
        } else if (sscanf(line, "burst %u %u %u %lu", &us, &a, &b, &t) == 4) {
            burst(us, a, b, t);
        } else if (sscanf(line, "buckets %lu", &from) == 1) {
            int64_t first = ((int64_t)from * 1000 - (int64_t)opened) / 100000;
            uint64_t last = (now_us() - opened) / 100000;
            for (int64_t i = first; i < (int64_t)last && i < TENTHS; i++) printf("%u ", i < 0 ? 0 : made[i]);
            puts("");
        } else if (!strncmp(line, "clock", 5)) {
            printf("%lu\n", (unsigned long)(now_us() / 1000));
        } else {
            return fprintf(stderr, "tenant: what is %s", line), 1;
        }
        fflush(stdout);
    }
    return 0;
}
