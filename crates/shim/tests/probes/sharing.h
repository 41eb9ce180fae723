/* The probe's commands about arrays, limits, pinned memory and memory of other processes; included by probe.c. */
#include <sys/socket.h>
#include <sys/un.h>

static result make_array(enum kind kind, size_t bytes, uint64_t *handle) { /* elements of 16 bytes */
    array_v1 flat1 = {1 << 16, bytes >> 20, 0x20, 4};
    array_v2 flat = {1 << 16, bytes >> 20, 0x20, 4};
    array3d_v1 deep1 = {1 << 12, 16, bytes >> 20, 0x20, 4, 0};
    array3d_v2 deep = {1 << 12, 16, bytes >> 20, 0x20, 4, 0};
    array3d_v2 levels = {1 << 15, bytes >> 19, 0, 0x20, 4, 0};
    void **out = (void **)handle;
    switch (kind) {
    case ARRAY: return cuArrayCreate_v2(out, &flat);
    case ARRAYV1: return cuArrayCreate(out, &flat1);
    case ARRAY3D: return cuArray3DCreate_v2(out, &deep);
    case ARRAY3DV1: return cuArray3DCreate(out, &deep1);
    default: return cuMipmappedArrayCreate(out, &levels, 1);
    }
}

static int mailbox = -1;

static void open_mailbox(const char *path) {
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    strncpy(at.sun_path, path, sizeof at.sun_path - 1);
    mailbox = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    printf("%d\n", bind(mailbox, (struct sockaddr *)&at, sizeof at));
}

static int pass(const char *path, int descriptor, int sends) { /* a descriptor, by socket */
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    char byte = 0, room[CMSG_SPACE(sizeof(int))] __attribute__((aligned(8))) = {0};
    struct iovec data = {&byte, 1};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (!sends) {
        if (recvmsg(mailbox, &message, MSG_CMSG_CLOEXEC) != 1) return -1;
        header = CMSG_FIRSTHDR(&message);
        return header ? *(int *)CMSG_DATA(header) : -1;
    }
    strncpy(at.sun_path, path, sizeof at.sun_path - 1);
    message.msg_name = &at;
    message.msg_namelen = sizeof at;
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    *(int *)CMSG_DATA(header) = descriptor;
    int sender = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0), sent = sendmsg(sender, &message, 0) == 1 ? 0 : -1;
    close(sender);
    return sent;
}

static void say_handle(result answer, const ipc_handle *handle) {
    printf("%d", answer);
    for (int i = 0; i < 8; i++) printf(" %lld", (long long)handle->words[i]);
    printf("\n");
}

static ipc_handle read_handle(const char *words) {
    ipc_handle handle = {0};
    for (int i = 0, used = 0; i < 8; i++, words += used) {
        long long word = 0;
        sscanf(words, "%lld%n", &word, &used);
        handle.words[i] = word;
    }
    return handle;
}

/* Whether the line was one of these. What is meant is what was taken last. */
static int sharing_command(const char *line) {
    static uint64_t opened, mapped;
    static size_t mapped_size;
    static void *pinned, *external;
    unsigned long long a = 0, b = 0;
    char path[256] = "";
    ipc_handle handle = {0};
    if (sscanf(line, "limitof %llu %llu", &a, &b) == 2) {
        printf("%d\n", cuCtxSetLimit(a, b));
    } else if (sscanf(line, "pin %llu", &a) == 1) {
        pinned = NULL;
        printf("%d\n", cuMemHostAlloc(&pinned, a, 0));
    } else if (!strncmp(line, "unpin", 5)) {
        printf("%d\n", cuMemFreeHost(pinned));
    } else if (!strncmp(line, "ipcget", 6)) {
        say_handle(cuIpcGetMemHandle(&handle, blocks[held - 1].address), &handle);
    } else if (!strncmp(line, "pooledget", 9)) {
        say_handle(cuMemPoolExportPointer(&handle, blocks[held - 1].address), &handle);
    } else if (!strncmp(line, "pooledopen ", 11)) {
        uint64_t address = UNTOUCHED;
        handle = read_handle(line + 11);
        result answer = cuMemPoolImportPointer(&address, pool, &handle);
        if (!answer) remember(ASYNC, address);
        printf("%d %d\n", answer, address == UNTOUCHED);
    } else if (!strncmp(line, "sharedpool", 10)) {
        pool_props props = {.type = 1, .handle_types = 1, .where = {1, device}};
        printf("%d\n", cuMemPoolCreate(&pool, &props));
    } else if (sscanf(line, "sendpool %255s", path) == 1) {
        int descriptor = -1;
        result answer = cuMemPoolExportToShareableHandle(&descriptor, pool, 1, 0);
        int sent = answer ? 0 : pass(path, descriptor, 1);
        if (!answer) close(descriptor);
        printf("%d %d\n", answer, sent);
    } else if (!strncmp(line, "poolreceive", 11)) {
        int descriptor = pass("", -1, 0);
        printf("%d\n", cuMemPoolImportFromShareableHandle(&pool, (void *)(intptr_t)descriptor, 1, 0));
        close(descriptor);
    } else if (!strncmp(line, "ipcopen ", 8)) {
        uint64_t address = UNTOUCHED;
        handle = read_handle(line + 8);
        result answer = cuIpcOpenMemHandle_v2(&address, handle, 1);
        if (!answer) opened = address;
        printf("%d %d\n", answer, address == UNTOUCHED);
    } else if (!strncmp(line, "ipcclose", 8)) {
        printf("%d\n", cuIpcCloseMemHandle(opened));
    } else if (sscanf(line, "exportable %llu", &a) == 1) {
        allocation_prop prop = {.type = 1, .handle_types = 1, .where = {1, device}};
        uint64_t made = 0;
        result answer = cuMemCreate(&made, a, &prop, 0);
        if (!answer) remember(VMM, made);
        printf("%d\n", answer);
    } else if (sscanf(line, "mailbox %255s", path) == 1) {
        open_mailbox(path);
    } else if (sscanf(line, "sendbare %255s", path) == 1) { /* without what the limiter put on the descriptor */
        struct flock all = {.l_type = F_UNLCK, .l_whence = SEEK_SET};
        int descriptor = -1;
        result answer = cuMemExportToShareableHandle(&descriptor, blocks[held - 1].address, 1, 0);
        int sent = answer || fcntl(descriptor, F_OFD_SETLK, &all) ? 1 : pass(path, descriptor, 1);
        if (!answer) close(descriptor);
        printf("%d %d\n", answer, sent);
    } else if (sscanf(line, "send %255s", path) == 1) {
        int descriptor = -1;
        result answer = cuMemExportToShareableHandle(&descriptor, blocks[held - 1].address, 1, 0);
        int sent = answer ? 0 : pass(path, descriptor, 1);
        if (!answer) close(descriptor);
        printf("%d %d\n", answer, sent);
    } else if (!strncmp(line, "receive", 7)) {
        uint64_t imported = UNTOUCHED;
        int descriptor = pass("", -1, 0);
        result answer = cuMemImportFromShareableHandle(&imported, (void *)(intptr_t)descriptor, 1);
        if (!answer) remember(VMM, imported);
        close(descriptor);
        printf("%d %d\n", answer, imported == UNTOUCHED);
    } else if (sscanf(line, "mapit %llu", &a) == 1) {
        result answer = cuMemAddressReserve(&mapped, a, 0, 0, 0);
        mapped_size = a;
        printf("%d\n", answer ? answer : cuMemMap(mapped, a, 0, blocks[held - 1].address, 0));
    } else if (!strncmp(line, "unmapit", 7)) {
        printf("%d\n", cuMemUnmap(mapped, mapped_size));
    } else if (sscanf(line, "externally %llu", &a) == 1) { /* the last block, by another interface */
        int descriptor = -1;
        external_memory of = {.type = 1, .size = a};
        result answer = cuMemExportToShareableHandle(&descriptor, blocks[held - 1].address, 1, 0);
        of.handle[0] = descriptor;
        if (!answer) answer = cuImportExternalMemory(&external, &of);
        if (answer) close(descriptor);
        printf("%d\n", answer);
    } else if (sscanf(line, "external %llu", &a) == 1) {
        void *got = (void *)UNTOUCHED;
        int descriptor = memfd_create("external", MFD_CLOEXEC);
        external_memory of = {.type = 1, .handle = {descriptor}, .size = a};
        result answer = ftruncate(descriptor, a) ? -1 : cuImportExternalMemory(&got, &of);
        if (!answer) external = got;
        else close(descriptor);
        printf("%d %d\n", answer, got == (void *)UNTOUCHED);
    } else if (sscanf(line, "buffer %llu", &a) == 1) {
        external_buffer of = {.size = a};
        uint64_t address = 0;
        result answer = cuExternalMemoryGetMappedBuffer(&address, external, &of);
        if (!answer) remember(LINEAR, address);
        printf("%d\n", answer);
    } else if (!strncmp(line, "endexternal", 11)) {
        printf("%d\n", cuDestroyExternalMemory(external));
    } else {
        return 0;
    }
    return 1;
}
