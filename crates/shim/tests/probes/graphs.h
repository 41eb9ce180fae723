/* The probe's commands about graphs and streams; included by probe.c. */

enum { SLOTS = 64 };
static void *streams[SLOTS], *graphs[SLOTS], *execs[SLOTS];
static uint64_t memory_of[SLOTS]; /* the address of a graph's last allocation node */

static result add_allocation(void *graph, void **after, int on, size_t bytes, int freed, uint64_t *address) {
    allocation_node_params params = {.pool = {.type = 1, .where = {1, on}}, .bytes = bytes};
    void *node = NULL, *last = NULL;
    result answer = cuGraphAddMemAllocNode(&node, graph, after ? after : NULL, after && *after, &params);
    *address = params.address;
    if (!answer && freed) answer = cuGraphAddMemFreeNode(&last, graph, &node, 1, params.address);
    if (after) *after = last ? last : node;
    return answer;
}

static result instantiate(const char *how, void **exec, void *graph, void *stream) {
    instantiate_params params = {.flags = !strcmp(how, "uploading") ? 2 : 0, .stream = stream};
    void *wrong = NULL;
    if (!strcmp(how, "log")) return cuGraphInstantiate(exec, graph, &wrong, NULL, 0);
    if (!strcmp(how, "log2")) return cuGraphInstantiate_v2(exec, graph, &wrong, NULL, 0);
    if (!strcmp(how, "flags")) return cuGraphInstantiateWithFlags(exec, graph, 0);
    if (!strcmp(how, "autofree")) return cuGraphInstantiateWithFlags(exec, graph, 1);
    return cuGraphInstantiateWithParams(exec, graph, &params);
}

/* A kernel that occupies the GPU for so long, on the simulated driver by its name. */
static result launch_busy(unsigned milliseconds, void *stream) {
    char name[32], text[256];
    void *module = NULL, *function = NULL;
    snprintf(name, sizeof name, "sim_busy_ms_%u", milliseconds);
    snprintf(text, sizeof text, ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry %s()\n{\n    ret;\n}\n", name);
    result answer = cuModuleLoadData(&module, text);
    if (!answer) answer = cuModuleGetFunction(&function, module, name);
    return answer ? answer : cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
}

/* Whether the line was one of these. Graph, exec and stream are numbers of the caller's choice; stream 0 is the null stream. */
static int graph_command(const char *line) {
    unsigned g = 0, s = 0, freed = 0, count = 0;
    unsigned long long bytes = 0, used = 0, reserved = 0;
    char how[32] = "";
    if (sscanf(line, "stream %u", &s) == 1) {
        printf("%d\n", cuStreamCreate(&streams[s], 1));
    } else if (sscanf(line, "synchronize %u", &s) == 1) {
        printf("%d\n", cuStreamSynchronize(streams[s]));
    } else if (sscanf(line, "graph %u %llu %u %u", &g, &bytes, &count, &freed) == 4) { /* allocations one after the other */
        void *after = NULL;
        result answer = cuGraphCreate(&graphs[g], 0);
        for (unsigned i = 0; !answer && i < count; i++)
            answer = add_allocation(graphs[g], &after, device, bytes, freed, &memory_of[g]);
        printf("%d\n", answer);
    } else if (sscanf(line, "graphon %u %llu %u", &g, &bytes, &s) == 3) { /* on that device */
        result answer = cuGraphCreate(&graphs[g], 0);
        printf("%d\n", answer ? answer : add_allocation(graphs[g], NULL, s, bytes, 1, &memory_of[g]));
    } else if (sscanf(line, "capture %u %u %llu %u", &g, &s, &bytes, &freed) == 4) {
        result begun = cuStreamBeginCapture_v2(streams[s], 0), taken, given = 0, ended;
        uint64_t address = UNTOUCHED;
        taken = cuMemAllocAsync(&address, bytes, streams[s]);
        memory_of[g] = address;
        if (!taken && freed) given = cuMemFreeAsync(address, streams[s]);
        ended = cuStreamEndCapture(streams[s], &graphs[g]);
        printf("%d %d %d %d\n", begun, taken, given, ended);
    } else if (sscanf(line, "begin %u %u", &s, &count) == 2) { /* stream, mode of the capture */
        printf("%d\n", cuStreamBeginCapture_v2(streams[s], count));
    } else if (sscanf(line, "end %u %u", &s, &g) == 2) {
        printf("%d\n", cuStreamEndCapture(streams[s], &graphs[g]));
    } else if (sscanf(line, "takeon %u %llu %u", &s, &bytes, &count) == 3) { /* stream, bytes, whether from the probe's pool */
        uint64_t address = UNTOUCHED;
        result answer = count ? cuMemAllocFromPoolAsync(&address, bytes, pool, streams[s])
                              : cuMemAllocAsync(&address, bytes, streams[s]);
        if (!answer) remember(ASYNC, address);
        printf("%d %d\n", answer, address == UNTOUCHED);
    } else if (sscanf(line, "instantiate %u %31s %u", &g, how, &s) == 3) {
        void *before = (void *)UNTOUCHED;
        execs[g] = before;
        result answer = instantiate(how, &execs[g], graphs[g], streams[s]);
        printf("%d %d\n", answer, execs[g] == before);
    } else if (sscanf(line, "launch %u %u", &g, &s) == 2) {
        printf("%d\n", cuGraphLaunch(execs[g], streams[s]));
    } else if (sscanf(line, "busy %u %u", &s, &count) == 2) { /* stream, milliseconds */
        printf("%d\n", launch_busy(count, streams[s]));
    } else if (sscanf(line, "launchptsz %u %u", &g, &s) == 2) {
        printf("%d\n", cuGraphLaunch_ptsz(execs[g], streams[s]));
    } else if (sscanf(line, "upload %u %u", &g, &s) == 2) {
        printf("%d\n", cuGraphUpload(execs[g], streams[s]));
    } else if (sscanf(line, "endexec %u", &g) == 1) {
        printf("%d\n", cuGraphExecDestroy(execs[g]));
    } else if (sscanf(line, "endgraph %u", &g) == 1) {
        printf("%d\n", cuGraphDestroy(graphs[g]));
    } else if (sscanf(line, "freeleft %u %u", &g, &s) == 2) { /* what a run of the graph left behind */
        printf("%d\n", cuMemFreeAsync(memory_of[g], streams[s]));
    } else if (!strncmp(line, "trimgraphs", 10)) {
        printf("%d\n", cuDeviceGraphMemTrim(device));
    } else if (!strncmp(line, "graphmemory", 11)) {
        result answer = cuDeviceGetGraphMemAttribute(device, 0, &used);
        if (!answer) answer = cuDeviceGetGraphMemAttribute(device, 2, &reserved);
        printf("%d %llu %llu\n", answer, used, reserved);
    } else {
        return 0;
    }
    return 1;
}
