/* NVML in front of the simulated driver. The file that DIVVY_TEST_LISTING names says what it lists: `drop=K` (all GPUs but
   the one with index K), `reverse` (in another order), `names` (profiles of 40gb and 80gb are called 39gb and 79gb), and
   anything else for what the driver itself lists. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NEXT(name) dlsym(RTLD_NEXT, name)

/* Whether the file says so; `number` takes what is behind the word. */
static int says(const char *word, unsigned *number) {
    char line[64] = "";
    const char *path = getenv("DIVVY_TEST_LISTING");
    FILE *file = path ? fopen(path, "r") : NULL;
    if (file) {
        if (!fgets(line, sizeof line, file)) line[0] = 0;
        fclose(file);
    }
    if (strncmp(line, word, strlen(word)) != 0) return 0;
    if (number) *number = (unsigned)strtoul(line + strlen(word), NULL, 10);
    return 1;
}

static int count(unsigned *gpus) {
    return ((int (*)(unsigned *))NEXT("nvmlDeviceGetCount_v2"))(gpus);
}

int nvmlDeviceGetCount_v2(unsigned *gpus) {
    unsigned dropped;
    int code = count(gpus);
    if (code == 0 && says("drop=", &dropped) && dropped < *gpus) --*gpus;
    return code;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    unsigned dropped, all = 0;
    if (says("reverse", NULL) && count(&all) == 0 && index < all) index = all - 1 - index;
    if (says("drop=", &dropped) && index >= dropped) ++index;
    return ((int (*)(unsigned, void **))NEXT("nvmlDeviceGetHandleByIndex_v2"))(index, device);
}

int nvmlDeviceGetIndex(void *device, unsigned *index) {
    unsigned dropped, all = 0;
    int code = ((int (*)(void *, unsigned *))NEXT("nvmlDeviceGetIndex"))(device, index);
    if (code != 0) return code;
    if (says("reverse", NULL) && count(&all) == 0) *index = all - 1 - *index;
    if (says("drop=", &dropped) && *index > dropped) --*index;
    return code;
}

int nvmlDeviceGetGpuInstanceProfileInfoV(void *device, unsigned profile, void *info) {
    int code = ((int (*)(void *, unsigned, void *))NEXT("nvmlDeviceGetGpuInstanceProfileInfoV"))(device, profile, info);
    char *bytes = info;
    for (int at = 0; code == 0 && at < 200 && says("names", NULL); at++) {
        if (memcmp(bytes + at, "40gb", 4) == 0) memcpy(bytes + at, "39gb", 4);
        if (memcmp(bytes + at, "80gb", 4) == 0) memcpy(bytes + at, "79gb", 4);
    }
    return code;
}
