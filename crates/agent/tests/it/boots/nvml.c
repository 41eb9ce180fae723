/* NVML in front of the simulated driver. The file that DIVVY_TEST_LISTING names says what it is from now on:
   all      what the driver itself lists
   drop=K   all GPUs but the one with index K
   reverse  the GPUs in another order
   swap     the first two cards have changed their slots
   card=K   another card, of another model and half the memory, is in the place of the one with index K
   names    profiles of 40gb and 80gb are called 39gb and 79gb
   newer    another version of the driver, with other profile ids
   absent   the module is not loaded */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NEXT(name) dlsym(RTLD_NEXT, name)

enum { NOT_FOUND = 6, DRIVER_NOT_LOADED = 9 };

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

/* The driver's own index of a device. */
static int index_of(void *device, unsigned *index) {
    return ((int (*)(void *, unsigned *))NEXT("nvmlDeviceGetIndex"))(device, index);
}

/* The index of the card that has changed its slot with this one. */
static unsigned swapped(unsigned index) {
    return index < 2 && says("swap", NULL) ? 1 - index : index;
}

/* Whether another card is in the place of this device. */
static int is_other_card(void *device) {
    unsigned card, index;
    return says("card=", &card) && index_of(device, &index) == 0 && index == card;
}

int nvmlInit_v2(void) {
    int code = ((int (*)(void))NEXT("nvmlInit_v2"))();
    if (code != 0 || !says("absent", NULL)) return code;
    ((int (*)(void))NEXT("nvmlShutdown"))();
    return DRIVER_NOT_LOADED;
}

int nvmlSystemGetDriverVersion(char *text, unsigned length) {
    int code = ((int (*)(char *, unsigned))NEXT("nvmlSystemGetDriverVersion"))(text, length);
    if (code == 0 && says("newer", NULL)) snprintf(text, length, "999.10");
    return code;
}

int nvmlDeviceGetCount_v2(unsigned *gpus) {
    unsigned dropped;
    int code = count(gpus);
    if (code == 0 && says("absent", NULL)) return DRIVER_NOT_LOADED;
    if (code == 0 && says("drop=", &dropped) && dropped < *gpus) --*gpus;
    return code;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    unsigned dropped, all = 0;
    if (says("reverse", NULL) && count(&all) == 0 && index < all) index = all - 1 - index;
    if (says("drop=", &dropped) && index >= dropped) ++index;
    return ((int (*)(unsigned, void **))NEXT("nvmlDeviceGetHandleByIndex_v2"))(swapped(index), device);
}

int nvmlDeviceGetIndex(void *device, unsigned *index) {
    unsigned dropped, all = 0;
    int code = index_of(device, index);
    if (code != 0) return code;
    if (says("reverse", NULL) && count(&all) == 0) *index = all - 1 - *index;
    if (says("drop=", &dropped) && *index > dropped) --*index;
    *index = swapped(*index);
    return code;
}

int nvmlDeviceGetPciInfo_v3(void *device, void *info) {
    unsigned index;
    if (says("swap", NULL) && index_of(device, &index) == 0) {
        int code = ((int (*)(unsigned, void **))NEXT("nvmlDeviceGetHandleByIndex_v2"))(swapped(index), &device);
        if (code != 0) return code;
    }
    return ((int (*)(void *, void *))NEXT("nvmlDeviceGetPciInfo_v3"))(device, info);
}

/* The UUID of the other card differs in its last digit. */
static void turn(char *uuid) {
    char *last = uuid + strlen(uuid) - 1;
    *last = *last == '0' ? '1' : '0';
}

int nvmlDeviceGetUUID(void *device, char *text, unsigned length) {
    int code = ((int (*)(void *, char *, unsigned))NEXT("nvmlDeviceGetUUID"))(device, text, length);
    if (code == 0 && is_other_card(device)) turn(text);
    return code;
}

int nvmlDeviceGetHandleByUUID(const char *text, void **device) {
    unsigned count_of = 0, card;
    if (says("card=", &card) && count(&count_of) == 0) {
        for (unsigned index = 0; index < count_of; index++) {
            char uuid[96];
            if (nvmlDeviceGetHandleByIndex_v2(index, device) == 0 &&
                nvmlDeviceGetUUID(*device, uuid, sizeof uuid) == 0 && strcmp(uuid, text) == 0) return 0;
        }
        return NOT_FOUND;
    }
    return ((int (*)(const char *, void **))NEXT("nvmlDeviceGetHandleByUUID"))(text, device);
}

int nvmlDeviceGetName(void *device, char *text, unsigned length) {
    int code = ((int (*)(void *, char *, unsigned))NEXT("nvmlDeviceGetName"))(device, text, length);
    if (code == 0 && is_other_card(device)) snprintf(text, length, "NVIDIA other card");
    return code;
}

struct memory { unsigned version; unsigned long long total, reserved, free, used; };

int nvmlDeviceGetMemoryInfo_v2(void *device, struct memory *memory) {
    int code = ((int (*)(void *, struct memory *))NEXT("nvmlDeviceGetMemoryInfo_v2"))(device, memory);
    if (code == 0 && is_other_card(device)) {
        memory->total /= 2;
        memory->free = memory->total - memory->reserved - memory->used;
    }
    return code;
}

/* Profile ids of the newer driver. */
static unsigned moved(void) { return says("newer", NULL) ? 100 : 0; }

int nvmlDeviceGetGpuInstanceProfileInfoV(void *device, unsigned profile, void *info) {
    int code = ((int (*)(void *, unsigned, void *))NEXT("nvmlDeviceGetGpuInstanceProfileInfoV"))(device, profile, info);
    char *bytes = info;
    for (int at = 0; code == 0 && at < 200 && says("names", NULL); at++) {
        if (memcmp(bytes + at, "40gb", 4) == 0) memcpy(bytes + at, "39gb", 4);
        if (memcmp(bytes + at, "80gb", 4) == 0) memcpy(bytes + at, "79gb", 4);
    }
    if (code == 0) ((unsigned *)info)[1] += moved();
    return code;
}

int nvmlDeviceGetGpuInstancePossiblePlacements_v2(void *device, unsigned profile, void *all, unsigned *count_of) {
    return ((int (*)(void *, unsigned, void *, unsigned *))NEXT("nvmlDeviceGetGpuInstancePossiblePlacements_v2"))(
        device, profile - moved(), all, count_of);
}

int nvmlDeviceGetGpuInstanceRemainingCapacity(void *device, unsigned profile, unsigned *count_of) {
    return ((int (*)(void *, unsigned, unsigned *))NEXT("nvmlDeviceGetGpuInstanceRemainingCapacity"))(
        device, profile - moved(), count_of);
}

int nvmlDeviceGetGpuInstances(void *device, unsigned profile, void *all, unsigned *count_of) {
    return ((int (*)(void *, unsigned, void *, unsigned *))NEXT("nvmlDeviceGetGpuInstances"))(
        device, profile - moved(), all, count_of);
}

int nvmlDeviceCreateGpuInstanceWithPlacement(void *device, unsigned profile, const void *at, void **instance) {
    return ((int (*)(void *, unsigned, const void *, void **))NEXT("nvmlDeviceCreateGpuInstanceWithPlacement"))(
        device, profile - moved(), at, instance);
}

struct instance { void *device; unsigned id, profile; };

int nvmlGpuInstanceGetInfo(void *instance, struct instance *info) {
    int code = ((int (*)(void *, struct instance *))NEXT("nvmlGpuInstanceGetInfo"))(instance, info);
    if (code == 0) info->profile += moved();
    return code;
}
