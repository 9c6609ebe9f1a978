/* A stand-in for NVIDIA's libcuda.so.1, as far as it is asked whether CUDA can begin: it counts the cards of `nvml.txt`
 * beside it (libnvidia-ml.c says what that file holds).
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, NO_DEVICE = 100 };

static int count(void) {
    char path[4096], line[1024];
    int cards = 0;
    Dl_info info;
    if (!dladdr((void *)&count, &info) || !realpath(info.dli_fname, path)) return 0;
    char *slash = strrchr(path, '/');
    if (!slash || slash - path > 4000) return 0;
    strcpy(slash, "/nvml.txt");
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file)) cards += !strncmp(line, "card ", 5);
    if (file) fclose(file);
    return cards;
}

int cuInit(unsigned flags) { return flags ? INVALID_VALUE : count() ? SUCCESS : NO_DEVICE; }

int cuDeviceGetCount(int *cards) {
    *cards = count();
    return SUCCESS;
}

int cuGetErrorString(int code, const char **words) {
    *words = code == NO_DEVICE ? "no CUDA-capable device is detected" : "invalid argument";
    return SUCCESS;
}
