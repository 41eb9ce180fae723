/* Everything that the CUDA runtime checks a device by, and more of what the driver says of it, in hexadecimal digits. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "cuda.h"

static void show(const char *what, const void *bytes, size_t count) {
    printf("%s ", what);
    for (size_t i = 0; i < count; i++) printf("%02x", ((const unsigned char *)bytes)[i]);
    printf("\n");
}

int main(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    result (*init)(unsigned) = dlsym(driver, "cuInit");
    result (*version)(int *) = dlsym(driver, "cuDriverGetVersion");
    result (*count)(int *) = dlsym(driver, "cuDeviceGetCount");
    result (*name)(char *, int, int) = dlsym(driver, "cuDeviceGetName");
    result (*uuid)(void *, int) = dlsym(driver, "cuDeviceGetUuid"), (*uuid2)(void *, int) = dlsym(driver, "cuDeviceGetUuid_v2");
    result (*bus)(char *, int, int) = dlsym(driver, "cuDeviceGetPCIBusId");
    result (*attribute)(int *, int, int) = dlsym(driver, "cuDeviceGetAttribute");
    result (*properties)(void *, int) = dlsym(driver, "cuDeviceGetProperties");
    int number = 0, devices = 0;
    if (init(0) || version(&number) || count(&devices) || !devices) return 3;
    printf("version %d devices %d\n", number, devices);
    for (int device = 0; device < devices; device++) {
        char text[256] = "";
        unsigned char bytes[256] = {0};
        if (name(text, sizeof text, device)) return 4;
        printf("name %s\n", text);
        printf("uuid %d", uuid(bytes, device));
        show("", bytes, 16);
        printf("uuid_v2 %d", uuid2(bytes, device));
        show("", bytes, 16);
        printf("bus %d %s\n", bus(text, sizeof text, device), text);
        for (int which = 1; which < 160; which++) {
            int value = 0, answer = attribute(&value, which, device);
            printf("attribute %d %d %d\n", which, answer, value);
        }
        memset(bytes, 0, sizeof bytes);
        printf("properties %d", properties(bytes, device));
        show("", bytes, sizeof bytes);
    }
    return 0;
}
