/* What CUDA shows a process for values of CUDA_VISIBLE_DEVICES: `visible VALUE…`. The value `unset` removes the variable, and
 * `kept` leaves it as the process found it.
 *
 * Each value is tried in a child, because a process initialises CUDA once. A line has the value, the result of cuInit, the
 * UUIDs, the result of an allocation on the first GPU, the variable afterwards, and what standard error got, with | between. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *shown(void)
{
    const char *value = getenv("CUDA_VISIBLE_DEVICES");
    return value ? value : "unset";
}

static void *function(void *library, const char *name)
{
    void *found = dlsym(library, name);
    if (!found)
        _exit(3);
    return found;
}

static void try(const char *value)
{
    if (!strcmp(value, "unset"))
        unsetenv("CUDA_VISIBLE_DEVICES");
    else if (strcmp(value, "kept"))
        setenv("CUDA_VISIBLE_DEVICES", value, 1);
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
    if (!cuda)
        _exit(2);
    int (*init)(unsigned) = (int (*)(unsigned))function(cuda, "cuInit");
    int (*count)(int *) = (int (*)(int *))function(cuda, "cuDeviceGetCount");
    int (*uuid)(unsigned char *, int) = (int (*)(unsigned char *, int))function(cuda, "cuDeviceGetUuid_v2");
    int (*retain)(void **, int) = (int (*)(void **, int))function(cuda, "cuDevicePrimaryCtxRetain");
    int (*current)(void *) = (int (*)(void *))function(cuda, "cuCtxSetCurrent");
    int (*alloc)(unsigned long long *, size_t) = (int (*)(unsigned long long *, size_t))function(cuda, "cuMemAlloc_v2");
    int result = init(0), gpus = 0;
    printf("%s|%d|", value, result);
    for (int gpu = 0; !result && !count(&gpus) && gpu < gpus; gpu++) {
        unsigned char bytes[16];
        uuid(bytes, gpu);
        printf("%sGPU-", gpu ? "," : "");
        for (int at = 0; at < 16; at++)
            printf("%s%02x", at == 4 || at == 6 || at == 8 || at == 10 ? "-" : "", bytes[at]);
    }
    void *context = NULL;
    unsigned long long address = 0;
    int got = -1;
    if (gpus)
        got = retain(&context, 0) || current(context) ? -2 : alloc(&address, 1 << 20);
    printf("|%d|%s|", got, shown());
    fflush(stdout);
    _exit(0);
}

int main(int values, char **words)
{
    for (int at = 1; at < values; at++) {
        int said[2], status;
        char text[4096];
        size_t length = 0;
        ssize_t more;
        if (pipe(said))
            return 4;
        pid_t child = fork();
        if (child < 0)
            return 5;
        if (!child) {
            dup2(said[1], 2);
            close(said[0]);
            close(said[1]);
            try(words[at]);
        }
        close(said[1]);
        while (length < sizeof text - 1 && (more = read(said[0], text + length, sizeof text - 1 - length)) > 0)
            length += (size_t)more;
        close(said[0]);
        text[length] = 0;
        text[strcspn(text, "\n")] = 0;
        if (waitpid(child, &status, 0) != child || status)
            return 6;
        printf("%s\n", text);
        fflush(stdout);
    }
    return 0;
}
