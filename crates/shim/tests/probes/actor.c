/* Calls whatever function of the driver it is told to, with whatever arguments, line by line:
 *
 *   NAME ARGUMENT…   a number · "&" the address of a 64-bit place · "+HEX" the address of a buffer with these bytes ·
 *                    "=HEX" a structure of more than 16 bytes by value
 *
 * Answers the result, then what is in each place and each buffer afterwards, as 64-bit numbers. "PID" answers the process's own,
 * "TAKE PID DESCRIPTOR" a descriptor of what another process has open, "CLOSE DESCRIPTOR" closes one, and "ROOM BYTES" the
 * address of pages that stay.
 * Integers and addresses are passed alike on x86-64 and arm64, so one signature does for all functions without floats.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { ARGUMENTS = 14, WORDS = 256 };
#define UNTOUCHED 0x5afe5afe5afe5afeull

typedef uint64_t word;
typedef int function(word, word, word, word, word, word, word, word, word, word, word, word, word, word);

static word buffers[ARGUMENTS][WORDS];

static int fill(word *buffer, const char *hex) {
    unsigned char *bytes = (unsigned char *)buffer;
    size_t length = strlen(hex) / 2;
    memset(buffer, 0, sizeof *buffers);
    for (size_t i = 0; i < length && i < sizeof *buffers; i++) sscanf(hex + 2 * i, "%2hhx", &bytes[i]);
    return (int)((length + 7) / 8);
}

static void call(void *cuda, void *nvml, char *line) {
    word arguments[ARGUMENTS] = {0};
    int shown[ARGUMENTS] = {0}, count = 0;
    char *rest, *name = strtok_r(line, " \n", &rest), *text;
    if (!name || !strcmp(name, "PID")) {
        printf("%d\n", getpid());
        return;
    }
    /* The simulated driver is both libraries. */
    void *found = dlsym(*name == 'n' ? nvml : cuda, name);
    while (count < ARGUMENTS && (text = strtok_r(NULL, " \n", &rest))) {
        if (*text == '&') {
            buffers[count][0] = UNTOUCHED;
            shown[count] = 1;
            arguments[count] = (word)buffers[count];
        } else if (*text == '+') {
            shown[count] = fill(buffers[count], text + 1);
            arguments[count] = (word)buffers[count];
        } else if (*text == '=') {
            int words = fill(buffers[count], text + 1);
#ifdef __x86_64__ /* on the stack, behind six registers (System V ABI for x86-64, 3.2.3) */
            memcpy(arguments + 6, buffers[count], words * sizeof(word));
            continue;
#else /* a copy by its address (AAPCS64, 6.8.2) */
            (void)words;
            arguments[count] = (word)buffers[count];
#endif
        } else {
            arguments[count] = strtoull(text, NULL, 0);
        }
        count++;
    }
    if (!strcmp(name, "TAKE")) {
        int process = (int)syscall(SYS_pidfd_open, (pid_t)arguments[0], 0);
        printf("%d\n", (int)syscall(SYS_pidfd_getfd, process, (int)arguments[1], 0));
        close(process);
        return;
    }
    if (!strcmp(name, "ROOM")) {
        printf("%lld\n", (long long)(word)aligned_alloc(4096, arguments[0]));
        return;
    }
    if (!strcmp(name, "CLOSE")) {
        printf("%d\n", close((int)arguments[0]));
        return;
    }
    if (!found) {
        printf("-1\n");
        return;
    }
    const word *a = arguments;
    printf("%d", ((function *)found)(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11],
                                    a[12], a[13]));
    for (int i = 0; i < count; i++)
        for (int j = 0; j < shown[i]; j++) printf(" %lld", (long long)buffers[i][j]);
    printf("\n");
}

int main(void) {
    static char line[1 << 16];
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL), *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (!cuda || !nvml) return fprintf(stderr, "actor: %s\n", dlerror()), 3;
    while (fgets(line, sizeof line, stdin)) {
        call(cuda, nvml, line);
        fflush(stdout);
    }
    return 0;
}
