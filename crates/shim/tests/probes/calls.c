/* Calls functions of the driver by their names, each with the arguments that it is told; what the limiter does about a call is seen from
 * outside. A command a line on stdin, what the function answered on stdout, and "0" when it is ready.
 *
 *   own NAME ARGUMENT...       "stream" is a stream of its own
 *   default NAME ARGUMENT...   "stream" is the null stream
 *   captured NAME ARGUMENT...  "stream" is its own, and is captured meanwhile
 *
 * An argument is a number or one of the names below. All are passed as words, which is how integers, pointers and structures of eight bytes
 * are passed on the machines that this is made for; a function that takes fewer does not see the others.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda.h"

#define DECLARE(name, base, version, flags, type, parameters) static type (*name) parameters;
CUDA(DECLARE)
#define FIND(name, base, version, flags, type, parameters) *(void **)&name = found(#name);

#define CHECK(call) check(call, #call)
static void check(int answer, const char *what) {
    if (answer) fprintf(stderr, "calls: %s answered %d\n", what, answer), exit(1);
}

static void *driver;

static void *found(const char *name) {
    void *function = dlsym(driver, name);
    if (!function) fprintf(stderr, "calls: %s is missing\n", name), exit(3);
    return function;
}

enum { WORDS = 12 };
typedef uint64_t word;
typedef result (*any)(word, word, word, word, word, word, word, word, word, word, word, word);

typedef struct { size_t x, y; int kind; void *host; uint64_t address; void *array; size_t pitch; } flat_end;
typedef struct { flat_end from, to; size_t width, height; } flat_copy;
typedef struct {
    size_t x, y, z, level;
    int kind;
    void *host;
    uint64_t address;
    void *array, *context;
    size_t pitch, height;
} box_end;
typedef struct { box_end from, to; size_t width, height, depth; } box_copy;
typedef struct { int kind; uint64_t address; size_t row, layer; location hint; } operand;
typedef struct { operand from, to; size_t width, height, depth; int order; unsigned flags; } batched_box;
typedef struct { int order; location from, to; unsigned flags; } batch_attributes;
typedef struct { void *function; unsigned grid[3], block[3], shared; void *stream, *parameters; } launch_parameters;
typedef struct { unsigned grid[3], block[3], shared; void *stream, *attributes; unsigned count; } launch_config;

/* CU_MEMORYTYPE_DEVICE, CU_MEMCPY_OPERAND_TYPE_POINTER, CU_MEMCPY_SRC_ACCESS_ORDER_STREAM, CU_MEM_LOCATION_TYPE_DEVICE */
enum { DEVICE = 2, POINTER = 1, IN_ORDER = 1, ON_DEVICE = 1, SIZE = 4096, PITCH = 64 };

static void *context, *own, *stream, *kernel, *executable, *array, *event;
static uint64_t to, from, managed;
static char host[SIZE];
static size_t sizes[] = {64}, firsts[] = {0}, failed;
static location place = {ON_DEVICE, 0};

static void nothing(void) {}

static word meaning(const char *name) {
    static flat_copy flat;
    static box_copy box, peer;
    static batched_box boxes[1];
    static batch_attributes attributes[] = {{IN_ORDER, {0}, {0}, 0}};
    static launch_parameters launches[1];
    static launch_config config;
    flat = (flat_copy){{.kind = DEVICE, .address = from, .pitch = PITCH}, {.kind = DEVICE, .address = to, .pitch = PITCH}, 16, 2};
    box_end ends[] = {
        {.kind = DEVICE, .address = from, .pitch = PITCH, .height = 4},
        {.kind = DEVICE, .address = to, .pitch = PITCH, .height = 4},
    };
    box = peer = (box_copy){ends[0], ends[1], 16, 2, 2};
    peer.from.context = peer.to.context = context;
    boxes[0] = (batched_box){{.kind = POINTER, .address = from}, {.kind = POINTER, .address = to}, 16, 2, 2, IN_ORDER, 0};
    launches[0] = (launch_parameters){kernel, {1, 1, 1}, {1, 1, 1}, 0, stream, NULL};
    config = (launch_config){{1, 1, 1}, {1, 1, 1}, 0, stream, NULL, 0};
    word location_itself;
    memcpy(&location_itself, &place, sizeof location_itself);
    struct { const char *name; word is; } names[] = {
        {"stream", (word)stream}, {"context", (word)context}, {"kernel", (word)kernel},
        {"graph", (word)executable}, {"array", (word)array}, {"event", (word)event},
        {"to", to}, {"from", from}, {"managed", managed}, {"host", (word)host},
        {"tos", (word)&to}, {"froms", (word)&from}, {"manageds", (word)&managed},
        {"sizes", (word)sizes}, {"firsts", (word)firsts}, {"failed", (word)&failed},
        {"place", location_itself}, {"places", (word)&place}, {"attributes", (word)attributes},
        {"flat", (word)&flat}, {"box", (word)&box}, {"peer", (word)&peer}, {"boxes", (word)boxes},
        {"launches", (word)launches}, {"config", (word)&config}, {"nothing", (word)nothing},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(name, names[i].name)) return names[i].is;
    char *end;
    word number = strtoull(name, &end, 0);
    if (end == name || *end) fprintf(stderr, "calls: what is %s\n", name), exit(1);
    return number;
}

static void prepare(void) {
    static const char text[] =
        ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry sim_busy_us_10()\n{\n\tret;\n}\n";
    void *module, *graph;
    array_v2 shape = {.width = 64, .format = 1, .channels = 1};
    CHECK(cuInit(0));
    CHECK(cuDevicePrimaryCtxRetain(&context, 0));
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuStreamCreate(&own, 1));
    CHECK(((result(*)(void **, unsigned))found("cuEventCreate"))(&event, 0));
    CHECK(cuModuleLoadData(&module, text));
    CHECK(cuModuleGetFunction(&kernel, module, "sim_busy_us_10"));
    CHECK(cuMemAlloc_v2(&to, SIZE));
    CHECK(cuMemAlloc_v2(&from, SIZE));
    CHECK(cuMemAllocManaged(&managed, SIZE, 1));
    CHECK(cuArrayCreate_v2(&array, &shape));
    CHECK(cuStreamBeginCapture_v2(own, 0));
    CHECK(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, own, NULL, NULL));
    CHECK(cuStreamEndCapture(own, &graph));
    CHECK(cuGraphInstantiateWithFlags(&executable, graph, 0));
}

static result called(const char *how, const char *name) {
    word words[WORDS] = {0};
    const char *argument;
    int captured = !strcmp(how, "captured");
    any call = (any)found(name);
    void *graph = NULL;
    stream = strcmp(how, "default") ? own : NULL;
    for (int i = 0; i < WORDS && (argument = strtok(NULL, " \n")); i++) words[i] = meaning(argument);
    if (captured) CHECK(cuStreamBeginCapture_v2(own, 0));
    result answer = call(words[0], words[1], words[2], words[3], words[4], words[5], words[6], words[7], words[8], words[9],
                         words[10], words[11]);
    /* What the driver would not have in a capture has ended it. */
    if (captured && !cuStreamEndCapture(own, &graph)) CHECK(cuGraphDestroy(graph));
    return answer;
}

int main(void) {
    char line[512];
    driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!driver) return fprintf(stderr, "calls: %s\n", dlerror()), 1;
    CUDA(FIND)
    prepare();
    puts("0");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        char *how = strtok(line, " \n"), *name = strtok(NULL, " \n");
        if (!how || !name) return fprintf(stderr, "calls: what is %s", line), 1;
        printf("%d\n", called(how, name));
        fflush(stdout);
    }
    return 0;
}
