/* Reads "NAME VERSION FLAGS SYMBOL" lines and says for each where cuGetProcAddress and dlsym lead: to the limiter, to the
 * driver, or nowhere; with the result and the status that came with it; and whether cuGetProcAddress, in its first and second
 * form, leads to the very function that dlsym finds as SYMBOL. With the word "allocate" it allocates a byte in the end. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "cuda.h"

static const char *home(void *address) {
    Dl_info info;
    if (!address) return "none";
    if (!dladdr(address, &info)) return "unknown";
    return strstr(info.dli_fname, "divvy_preload") || strstr(info.dli_fname, "/wrapper/libcuda.so.1") ? "hook" : "driver";
}

/* An exported hook is one jump to the hook itself: endbr64, jmp; on arm64 bti c, b, with the distance in words. */
static void *behind_jump(void *address) {
#ifdef __aarch64__
    unsigned words[2];
    if (!address) return address;
    memcpy(words, address, sizeof words);
    if (words[0] != 0xd503245f || words[1] >> 26 != 5) return address;
    return (char *)address + 4 + ((int)(words[1] << 6) >> 4);
#else
    static const unsigned char jump[] = {0xf3, 0x0f, 0x1e, 0xfa, 0xe9};
    int distance;
    if (!address || memcmp(address, jump, sizeof jump)) return address;
    memcpy(&distance, (char *)address + sizeof jump, sizeof distance);
    return (char *)address + sizeof jump + sizeof distance + distance;
#endif
}

static const char *same(void *found, void *named) {
    return !found && !named ? "none" : found && behind_jump(found) == behind_jump(named) ? "same" : "other";
}

/* What nobody should pass but everybody does: nulls, and what cuGetProcAddress says of itself. */
static void corners(void *driver) {
    result (*v1)(const char *, void **, int, uint64_t) = dlsym(driver, "cuGetProcAddress");
    result (*v2)(const char *, void **, int, uint64_t, int *) = dlsym(driver, "cuGetProcAddress_v2");
    void *found = (void *)8;
    int status = 7;
    printf("%d %d", v1("cuMemAlloc", NULL, 12000, 0), v2("cuMemAlloc", NULL, 12000, 0, &status));
    printf(" %d", v2("cuMemAlloc", &found, 12000, 0, NULL));
    printf(" %s", home(found));
    found = (void *)8;
    printf(" %d %d", v1(NULL, &found, 12000, 0), v2(NULL, &found, 12000, 0, &status));
    printf(" %d", found == (void *)8);
    if (!v2("cuGetProcAddress", &found, 12000, 0, &status)) *(void **)&v2 = found;
    if (!v1("cuGetProcAddress", &found, 11030, 0)) *(void **)&v1 = found;
    printf(" %d", v2("cuMemAlloc", &found, 12000, 0, &status));
    printf(" %s %d", home(found), status);
    printf(" %d", v1("cuMemAlloc", &found, 12000, 0));
    printf(" %s\n", home(found));
}

int main(int count, char **words) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    result (*v1)(const char *, void **, int, uint64_t) = dlsym(driver, "cuGetProcAddress");
    result (*v2)(const char *, void **, int, uint64_t, int *) = dlsym(driver, "cuGetProcAddress_v2");
    char name[256], symbol[256];
    int version;
    unsigned long long flags;
    if (count > 1 && !strcmp(words[1], "corners")) return corners(driver), 0;
    if (count > 1 && !strcmp(words[1], "before")) printf("%s %s\n", home((void *)v1), home((void *)v2));
    while (scanf("%255s %d %llu %255s", name, &version, &flags, symbol) == 4) {
        void *one = NULL, *two = NULL;
        int status = -1;
        const char *asked = strcmp(name, "-") ? name : "";
        result r1 = v1(asked, &one, version, flags), r2 = v2(asked, &two, version, flags, &status);
        void *named = dlsym(driver, symbol);
        printf("%s %d %s %d %d %s %s %s %s\n", symbol, r1, home(one), r2, status, home(two), home(named), same(one, named),
               same(two, named));
    }
    if (count > 1 && !strcmp(words[1], "allocate")) {
        uint64_t address;
        result (*alloc)(uint64_t *, size_t) = dlsym(driver, "cuMemAlloc_v2");
        return alloc(&address, 1);
    }
    return 0;
}
