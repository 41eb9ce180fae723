/* Reads "NAME VERSION FLAGS SYMBOL" lines and says for each where cuGetProcAddress and dlsym lead: to the preload, to the
 * driver, or nowhere; with the result and the status that came with it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "cuda.h"

static const char *home(void *address) {
    Dl_info info;
    if (!address) return "none";
    if (!dladdr(address, &info)) return "unknown";
    return strstr(info.dli_fname, "divvy_preload") ? "hook" : "driver";
}

int main(int count, char **words) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    result (*v1)(const char *, void **, int, uint64_t) = dlsym(driver, "cuGetProcAddress");
    result (*v2)(const char *, void **, int, uint64_t, int *) = dlsym(driver, "cuGetProcAddress_v2");
    char name[256], symbol[256];
    int version;
    unsigned long long flags;
    if (count > 1 && !strcmp(words[1], "before")) printf("%s %s\n", home((void *)v1), home((void *)v2));
    while (scanf("%255s %d %llu %255s", name, &version, &flags, symbol) == 4) {
        void *one = NULL, *two = NULL;
        int status = -1;
        const char *asked = strcmp(name, "-") ? name : "";
        result r1 = v1(asked, &one, version, flags), r2 = v2(asked, &two, version, flags, &status);
        printf("%s %d %s %d %d %s %s\n", symbol, r1, home(one), r2, status, home(two), home(dlsym(driver, symbol)));
    }
    return 0;
}
