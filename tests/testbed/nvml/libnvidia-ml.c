/* A stand-in for NVIDIA's libnvidia-ml.so.1: the calls Shoal makes, answered from a file.
 *
 * The file `nvml.txt` lies beside the library and is read again whenever it changes. One word and its values a line:
 *
 *   driver 615.71.05              the driver; `cuda 13040` is its CUDA version
 *   error FUNCTION CODE           the function fails with this NVML error; after a `card` line, only for that card
 *   event CARD TYPE DATA          an event of NVML's type, delivered once to each event set made before it was written
 *   card UUID                     begins a card; its index is its place. What follows is about it
 *   name NVIDIA A30               its product name
 *   KEY NUMBER                    a reading (see the functions below); a reading that is not given is not supported.
 *                                 `field_82` is NVML's field of that number, and `error field_82 CODE` its failure;
 *                                 `gpm_1` is GPM's metric of that number, in millionths; `time` is the driver's, in
 *                                 microseconds, when its processes computed last (not given: now)
 *   hang FUNCTION                 the function does not return for this card until the line is gone
 *   process PID BYTES LOAD MPS PART   a process, by MPS or not (1, 0), on the MIG partition of this place (from 1; 0: none)
 *   remapped CORRECTED UNCORRECTED PENDING FAILED
 *   link TYPE DOMAIN BUS DEVICE   the next NVLink and its other end: 0 a card, 2 a switch, 255 inactive
 *   mig SLICES MEGABYTES UUID NAME…   with 14 multiprocessors and one copy engine a slice
 *   fabric CLIQUE UUID            the fabric it has joined, the UUID as 32 hexadecimal digits
 *   cgroup BYTES PATH             what a cgroup uses of the card
 *
 * Other lines are ignored. The environment's NVML_PAUSE is how many milliseconds pass between looks for events, 5 by
 * default. What the library is told to do it adds to `nvml.told`: `compute_mode CARD MODE`,
 * `memory_limit CARD SOFT HARD PATH`.
 *
 * It is compiled against NVIDIA's nvml.h, which has the layouts, versions and numbers. All other calls of that header are
 * there too and answer FUNCTION_NOT_FOUND (`shim.py` writes them): programs of others find every name they look up.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define NVML_NO_UNVERSIONED_FUNC_DEFS /* the older names of calls too */
#include <nvml.h>

enum { CARDS = 64, NUMBERS = 160, PROCESSES = 128, LINKS = 36, PARTS = 8, CGROUPS = 64, EVENTS = 1024, ERRORS = 32 };
typedef unsigned int u32;
typedef unsigned long long u64;

struct number { char key[32]; u64 value; };
struct error { char function[64]; nvmlReturn_t code; };
struct running { u32 pid; u64 memory; u32 load, mps, part; };
struct link { u32 type, domain, bus, device; };
struct part { u32 slices; u64 megabytes; char uuid[96], name[96]; };
struct cgroup { u64 used; char path[512]; };
struct card {
    char uuid[96], name[96];
    u32 remapped[4]; int remaps;
    u32 clique; unsigned char fabric[16]; int joined;
    struct number numbers[NUMBERS]; int number_count;
    struct running running[PROCESSES]; int running_count;
    struct link links[LINKS]; int link_count;
    struct part parts[PARTS]; int part_count;
    struct cgroup cgroups[CGROUPS]; int cgroup_count;
    struct error errors[ERRORS]; int error_count;
    struct error hangs[ERRORS]; int hang_count;
};
static struct {
    char driver[80]; int cuda;
    struct card cards[CARDS]; int card_count;
    struct { u32 card; u64 type, data; } events[EVENTS]; int event_count;
    struct error errors[ERRORS]; int error_count;
} state;
struct nvmlEventSet_st { int seen; u64 types[CARDS]; };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct stat read_at;
static int initialised;

static void beside(const char *name, char *path, size_t size) {
    Dl_info info;
    char real[4096]; /* a link to the library may lie elsewhere */
    const char *found = dladdr((void *)&state, &info) ? info.dli_fname : "";
    if (realpath(found, real)) found = real;
    const char *slash = strrchr(found, '/');
    snprintf(path, size, "%.*s%s", slash ? (int)(slash - found + 1) : 0, found, name);
}

static void add_error(struct error *errors, int *count, const char *text) {
    struct error found;
    if (*count < ERRORS && sscanf(text, "%63s %u", found.function, &found.code) == 2) errors[(*count)++] = found;
}

static void add_hang(struct card *card, const char *text) {
    struct error *found = &card->hangs[card->hang_count];
    if (card->hang_count < ERRORS && sscanf(text, "%63s", found->function) == 1) found->code = NVML_ERROR_TIMEOUT, card->hang_count++;
}

static void read_card_line(struct card *card, const char *word, const char *rest) {
    struct running running = {0}; struct link link; struct part part = {0}; struct cgroup cgroup; struct number number;
    if (!strcmp(word, "hang")) add_hang(card, rest);
    else if (!strcmp(word, "name")) snprintf(card->name, sizeof card->name, "%s", rest);
    else if (!strcmp(word, "process")) {
        if (card->running_count < PROCESSES
            && sscanf(rest, "%u %llu %u %u %u", &running.pid, &running.memory, &running.load, &running.mps, &running.part) >= 4)
            card->running[card->running_count++] = running;
    } else if (!strcmp(word, "remapped")) {
        u32 *rows = card->remapped;
        card->remaps = sscanf(rest, "%u %u %u %u", &rows[0], &rows[1], &rows[2], &rows[3]) == 4;
    } else if (!strcmp(word, "link")) {
        if (card->link_count < LINKS && sscanf(rest, "%u %u %u %u", &link.type, &link.domain, &link.bus, &link.device) == 4)
            card->links[card->link_count++] = link;
    } else if (!strcmp(word, "mig")) {
        if (card->part_count < PARTS
            && sscanf(rest, "%u %llu %95s %95[^\n]", &part.slices, &part.megabytes, part.uuid, part.name) >= 3)
            card->parts[card->part_count++] = part;
    } else if (!strcmp(word, "fabric")) {
        char digits[33] = "";
        card->joined = sscanf(rest, "%u %32[0-9a-f]", &card->clique, digits) == 2 && strlen(digits) == 32;
        for (int i = 0; card->joined && i < 16; i++) sscanf(digits + 2 * i, "%2hhx", &card->fabric[i]);
    } else if (!strcmp(word, "cgroup")) {
        if (card->cgroup_count < CGROUPS && sscanf(rest, "%llu %511[^\n]", &cgroup.used, cgroup.path) == 2)
            card->cgroups[card->cgroup_count++] = cgroup;
    } else if (card->number_count < NUMBERS && sscanf(rest, "%llu", &number.value) == 1) {
        snprintf(number.key, sizeof number.key, "%s", word);
        card->numbers[card->number_count++] = number;
    }
}

static void read_line(char *line) {
    char word[32] = ""; int length = 0;
    if (sscanf(line, "%31s%n", word, &length) != 1) return;
    char *rest = line + length + strspn(line + length, " \t");
    rest[strcspn(rest, "\r\n")] = 0;
    struct card *card = state.card_count ? &state.cards[state.card_count - 1] : NULL;
    if (!strcmp(word, "driver")) snprintf(state.driver, sizeof state.driver, "%s", rest);
    else if (!strcmp(word, "cuda")) state.cuda = atoi(rest);
    else if (!strcmp(word, "event")) {
        int n = state.event_count;
        if (n < EVENTS && sscanf(rest, "%u %llu %llu", &state.events[n].card, &state.events[n].type, &state.events[n].data) == 3)
            state.event_count++;
    } else if (!strcmp(word, "card")) {
        if (state.card_count < CARDS) snprintf(state.cards[state.card_count++].uuid, sizeof card->uuid, "%s", rest);
    } else if (!strcmp(word, "error")) {
        if (card) add_error(card->errors, &card->error_count, rest);
        else add_error(state.errors, &state.error_count, rest);
    } else if (card) read_card_line(card, word, rest);
}

/* Reads the file again if it is another than the last time; a file that is gone is a machine without cards. */
static void refresh(void) {
    char path[4096], line[1024];
    struct stat now = {0};
    beside("nvml.txt", path, sizeof path);
    if (stat(path, &now) == 0 && now.st_ino == read_at.st_ino && now.st_size == read_at.st_size
        && !memcmp(&now.st_mtim, &read_at.st_mtim, sizeof now.st_mtim)) return;
    memset(&state, 0, sizeof state);
    read_at = now;
    FILE *file = fopen(path, "r");
    if (!file) return;
    while (fgets(line, sizeof line, file)) read_line(line);
    fclose(file);
}

static nvmlReturn_t failing(const struct error *errors, int count, const char *function) {
    for (int i = 0; i < count; i++) if (!strcmp(errors[i].function, function)) return errors[i].code;
    return NVML_SUCCESS;
}

static nvmlReturn_t number(const struct card *card, const char *key, u64 *value) {
    for (int i = 0; i < card->number_count; i++)
        if (!strcmp(card->numbers[i].key, key)) { *value = card->numbers[i].value; return NVML_SUCCESS; }
    return NVML_ERROR_NOT_SUPPORTED;
}

static nvmlDevice_t handle_of(int card, int part) { return (nvmlDevice_t)(size_t)(0x10000 + card * 0x100 + part); }

/* The card of a handle; a MIG partition's handle is its card's and the partition's place, from 1. */
static nvmlReturn_t card_of(nvmlDevice_t device, const char *function, struct card **card, struct part **part) {
    size_t number_ = (size_t)device - 0x10000, index = number_ >> 8, place = number_ & 0xff;
    u64 lost = 0;
    if (index >= (size_t)state.card_count) return NVML_ERROR_INVALID_ARGUMENT;
    *card = &state.cards[index];
    while (failing((*card)->hangs, (*card)->hang_count, function)) { /* the others go on meanwhile */
        pthread_mutex_unlock(&lock);
        usleep(5000);
        pthread_mutex_lock(&lock);
        refresh();
    }
    if (place > (size_t)(*card)->part_count || (place && !part)) return NVML_ERROR_INVALID_ARGUMENT;
    if (part) *part = place ? &(*card)->parts[place - 1] : NULL;
    if (number(*card, "lost", &lost) == NVML_SUCCESS && lost) return NVML_ERROR_GPU_IS_LOST;
    return failing((*card)->errors, (*card)->error_count, function);
}

static nvmlReturn_t enter(const char *function) {
    pthread_mutex_lock(&lock);
    refresh();
    return initialised ? failing(state.errors, state.error_count, function) : NVML_ERROR_UNINITIALIZED;
}

static nvmlReturn_t leave(nvmlReturn_t result) { pthread_mutex_unlock(&lock); return result; }

#define WITH_CARD(device, part) \
    struct card *card = NULL; \
    nvmlReturn_t failed = enter(__func__); \
    if (!failed) failed = card_of(device, __func__, &card, part); \
    if (failed) return leave(failed)

static nvmlReturn_t text(const char *value, char *buffer, u32 size) {
    if (strlen(value) + 1 > size) return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(buffer, value);
    return NVML_SUCCESS;
}

/* Appends to what the library was told; finds the last thing told that begins like this. */
static nvmlReturn_t tell(const char *line) {
    char path[4096];
    beside("nvml.told", path, sizeof path);
    FILE *file = fopen(path, "a");
    if (!file) return NVML_ERROR_NO_PERMISSION;
    fputs(line, file);
    fclose(file);
    return NVML_SUCCESS;
}

static int index_of(const struct card *card) { return (int)(card - state.cards); }

nvmlReturn_t nvmlInitWithFlags(u32 flags) {
    (void)flags;
    pthread_mutex_lock(&lock);
    refresh();
    nvmlReturn_t failed = failing(state.errors, state.error_count, __func__);
    if (!failed) initialised++;
    return leave(failed);
}
nvmlReturn_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
nvmlReturn_t nvmlShutdown(void) {
    nvmlReturn_t failed = enter(__func__);
    if (initialised) initialised--;
    return leave(failed);
}
const char *nvmlErrorString(nvmlReturn_t code) { (void)code; return "an error of the stand-in"; }

nvmlReturn_t nvmlSystemGetDriverVersion(char *buffer, u32 size) {
    nvmlReturn_t failed = enter(__func__);
    return leave(failed ? failed : text(state.driver, buffer, size));
}
nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) {
    nvmlReturn_t failed = enter(__func__);
    *version = state.cuda;
    return leave(failed);
}
nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version) { return nvmlSystemGetCudaDriverVersion_v2(version); }
nvmlReturn_t nvmlDeviceGetCount_v2(u32 *count) {
    nvmlReturn_t failed = enter(__func__);
    *count = state.card_count;
    return leave(failed);
}
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(u32 index, nvmlDevice_t *device) {
    WITH_CARD(handle_of(index < CARDS ? (int)index : CARDS, 0), NULL);
    *device = handle_of(index, 0);
    return leave(NVML_SUCCESS);
}
nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
    nvmlReturn_t failed = enter(__func__);
    for (int i = 0; !failed && i < state.card_count; i++)
        if (!strcmp(state.cards[i].uuid, uuid)) {
            struct card *card;
            *device = handle_of(i, 0);
            return leave(card_of(*device, __func__, &card, NULL));
        }
    return leave(failed ? failed : NVML_ERROR_NOT_FOUND);
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *buffer, u32 size) {
    struct part *part;
    WITH_CARD(device, &part);
    return leave(text(part ? part->uuid : card->uuid, buffer, size));
}
nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *buffer, u32 size) {
    struct part *part;
    WITH_CARD(device, &part);
    return leave(text(part ? part->name : card->name, buffer, size));
}
/* Total, used and reserved of a card, or of a MIG partition, which keeps nothing for itself. */
static nvmlReturn_t memory_of(struct card *card, struct part *part, u64 *total, u64 *used, u64 *reserved) {
    *reserved = 0;
    if (!part) return number(card, "memory", total) || number(card, "used", used) ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
    *total = part->megabytes << 20, *used = 0;
    for (int i = 0; i < card->running_count; i++)
        if (card->running[i].part == (u32)(part - card->parts) + 1) *used += card->running[i].memory;
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    u64 reserved = 0;
    struct part *part;
    WITH_CARD(device, &part);
    failed = memory_of(card, part, &memory->total, &memory->used, &reserved);
    if (!part) number(card, "reserved", &reserved);
    memory->used += reserved; /* the older call does not tell them apart */
    memory->free = memory->total - memory->used;
    return leave(failed);
}
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    u64 reserved = 0;
    struct part *part;
    WITH_CARD(device, &part);
    failed = memory_of(card, part, &memory->total, &memory->used, &reserved);
    if (!failed && !part) failed = number(card, "reserved", &reserved);
    memory->reserved = reserved;
    memory->free = memory->total - memory->used - memory->reserved;
    return leave(failed ? NVML_ERROR_NOT_SUPPORTED : memory->version != nvmlMemory_v2 ? NVML_ERROR_ARGUMENT_VERSION_MISMATCH : NVML_SUCCESS);
}
nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci) {
    u64 domain, bus, place;
    WITH_CARD(device, NULL);
    if (number(card, "domain", &domain) || number(card, "bus", &bus) || number(card, "device", &place))
        return leave(NVML_ERROR_NOT_SUPPORTED);
    memset(pci, 0, sizeof *pci);
    pci->domain = domain, pci->bus = bus, pci->device = place;
    snprintf(pci->busId, sizeof pci->busId, "%08X:%02X:%02X.0", pci->domain, pci->bus, pci->device);
    return leave(NVML_SUCCESS);
}
nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, u32 size, unsigned long *nodes, nvmlAffinityScope_t scope) {
    u64 node;
    (void)scope;
    WITH_CARD(device, NULL);
    if (number(card, "numa", &node)) return leave(NVML_ERROR_NOT_SUPPORTED);
    if (node / 64 >= size) return leave(NVML_ERROR_INSUFFICIENT_SIZE);
    memset(nodes, 0, size * sizeof *nodes);
    nodes[node / 64] = 1UL << node % 64;
    return leave(NVML_SUCCESS);
}
nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor) {
    u64 high, low;
    WITH_CARD(device, NULL);
    if (number(card, "cc_major", &high) || number(card, "cc_minor", &low)) return leave(NVML_ERROR_NOT_SUPPORTED);
    *major = high, *minor = low;
    return leave(NVML_SUCCESS);
}

#define READING(function, key) \
    nvmlReturn_t function(nvmlDevice_t device, u32 *value) { \
        u64 found = 0; \
        WITH_CARD(device, NULL); \
        failed = number(card, key, &found); \
        *value = found; \
        return leave(failed); \
    }
READING(nvmlDeviceGetMinorNumber, "minor")
READING(nvmlDeviceGetNumGpuCores, "cores")
READING(nvmlDeviceGetMemoryBusWidth, "bus_width")
READING(nvmlDeviceGetEnforcedPowerLimit, "power_limit")
READING(nvmlDeviceGetPowerUsage, "power")
READING(nvmlDeviceGetFanSpeed, "fan")
READING(nvmlDeviceGetPcieReplayCounter, "replays")

#define CHOSEN(function, type, ...) \
    nvmlReturn_t function(nvmlDevice_t device, type choice, u32 *value) { \
        static const char *keys[] = {__VA_ARGS__}; \
        u64 found = 0; \
        WITH_CARD(device, NULL); \
        if (choice >= sizeof keys / sizeof *keys) return leave(NVML_ERROR_INVALID_ARGUMENT); \
        failed = number(card, keys[choice], &found); \
        *value = found; \
        return leave(failed); \
    }
CHOSEN(nvmlDeviceGetTemperature, nvmlTemperatureSensors_t, "temperature")
CHOSEN(nvmlDeviceGetTemperatureThreshold, nvmlTemperatureThresholds_t, "shutdown", "slowdown", "memory_max", "gpu_max")
CHOSEN(nvmlDeviceGetClockInfo, nvmlClockType_t, "graphics_clock", "sm_clock", "memory_clock")
CHOSEN(nvmlDeviceGetMaxClockInfo, nvmlClockType_t, "graphics_max", "sm_max", "memory_clock_max")
CHOSEN(nvmlDeviceGetPcieThroughput, nvmlPcieUtilCounter_t, "pcie_sent", "pcie_received")

#define PAIR(function, type, second_type, first, second) \
    nvmlReturn_t function(nvmlDevice_t device, type *one, second_type *two) { \
        u64 a = 0, b = 0; \
        WITH_CARD(device, NULL); \
        failed = number(card, first, &a); \
        number(card, second, &b); \
        *one = a, *two = b; \
        return leave(failed); \
    }
PAIR(nvmlDeviceGetEccMode, nvmlEnableState_t, nvmlEnableState_t, "ecc", "ecc")
PAIR(nvmlDeviceGetMigMode, u32, u32, "mig_mode", "mig_mode")
PAIR(nvmlDeviceGetEncoderUtilization, u32, u32, "encoder", "period")
PAIR(nvmlDeviceGetDecoderUtilization, u32, u32, "decoder", "period")

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates) {
    u64 gpu = 0, memory = 0;
    WITH_CARD(device, NULL);
    failed = number(card, "load", &gpu) || number(card, "memory_load", &memory);
    rates->gpu = gpu, rates->memory = memory;
    return leave(failed ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS);
}
nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, u64 *energy) {
    WITH_CARD(device, NULL);
    return leave(number(card, "field_83", energy));
}
nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t type, nvmlEccCounterType_t counter, u64 *count) {
    char key[32];
    WITH_CARD(device, NULL);
    snprintf(key, sizeof key, "field_%d", 3 + (counter == NVML_AGGREGATE_ECC ? 2 : 0) + (type == NVML_MEMORY_ERROR_TYPE_UNCORRECTED));
    return leave(number(card, key, count));
}
static nvmlReturn_t clock_events(nvmlDevice_t device, u64 *reasons, const char *function) {
    struct card *card = NULL;
    nvmlReturn_t failed = enter(function);
    if (!failed) failed = card_of(device, function, &card, NULL);
    return leave(failed ? failed : number(card, "clock_events", reasons));
}
nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, u64 *reasons) { return clock_events(device, reasons, __func__); }
/* As drivers before R535 have it. */
nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device, u64 *reasons) { return clock_events(device, reasons, __func__); }

nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, u32 *corrected, u32 *uncorrected, u32 *pending_, u32 *failed_) {
    WITH_CARD(device, NULL);
    *corrected = card->remapped[0], *uncorrected = card->remapped[1];
    *pending_ = card->remapped[2], *failed_ = card->remapped[3];
    return leave(card->remaps ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED);
}
nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *fields) {
    WITH_CARD(device, NULL);
    for (int i = 0; i < count; i++) {
        char key[32];
        u64 found = 0;
        int links = fields[i].fieldId == NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX || fields[i].fieldId == NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX;
        snprintf(key, sizeof key, "field_%u", fields[i].fieldId);
        nvmlReturn_t told = failing(card->errors, card->error_count, key);
        if (!told && links && fields[i].scopeId != ~0u) told = NVML_ERROR_INVALID_ARGUMENT;
        fields[i].nvmlReturn = told ? told : number(card, key, &found);
        if (fields[i].fieldId == NVML_FI_DEV_MEMORY_TEMP) fields[i].valueType = NVML_VALUE_TYPE_UNSIGNED_INT, fields[i].value.uiVal = found;
        else fields[i].valueType = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, fields[i].value.ullVal = found;
    }
    return leave(NVML_SUCCESS);
}

/* GPM: a sample only remembers its card; what lies between two of them is what the file says now. */
struct nvmlGpmSample_st { nvmlDevice_t device; };
nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t device, nvmlGpmSupport_t *support) {
    u64 any = 0;
    WITH_CARD(device, NULL);
    support->isSupportedDevice = number(card, "gpm_1", &any) == NVML_SUCCESS;
    return leave(support->version != NVML_GPM_SUPPORT_VERSION ? NVML_ERROR_ARGUMENT_VERSION_MISMATCH : NVML_SUCCESS);
}
nvmlReturn_t nvmlGpmSampleAlloc(nvmlGpmSample_t *sample) {
    nvmlReturn_t failed = enter(__func__);
    if (!failed && !(*sample = calloc(1, sizeof **sample))) failed = NVML_ERROR_MEMORY;
    return leave(failed);
}
nvmlReturn_t nvmlGpmSampleFree(nvmlGpmSample_t sample) {
    nvmlReturn_t failed = enter(__func__);
    if (!failed) free(sample);
    return leave(failed);
}
nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t device, nvmlGpmSample_t sample) {
    WITH_CARD(device, NULL);
    sample->device = device;
    return leave(NVML_SUCCESS);
}
nvmlReturn_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *asked) {
    nvmlGpmSample_t one = asked->sample1, two = asked->sample2;
    struct card *card = NULL;
    nvmlReturn_t failed = enter(__func__);
    if (!failed && asked->version != NVML_GPM_METRICS_GET_VERSION) failed = NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (!failed && (one == two || !one->device || one->device != two->device || asked->numMetrics > NVML_GPM_METRIC_MAX))
        failed = NVML_ERROR_INVALID_ARGUMENT;
    if (!failed) failed = card_of(one->device, __func__, &card, NULL);
    for (u32 i = 0; !failed && i < asked->numMetrics; i++) {
        char key[32];
        u64 found = 0;
        snprintf(key, sizeof key, "gpm_%u", asked->metrics[i].metricId);
        asked->metrics[i].nvmlReturn = number(card, key, &found);
        asked->metrics[i].value = (double)found / 1e6;
    }
    return leave(failed);
}

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, u32 *count) {
    u64 mode = 0;
    WITH_CARD(device, NULL);
    *count = number(card, "mig_mode", &mode) ? 0 : 7;
    return leave(NVML_SUCCESS);
}
nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, u32 index, nvmlDevice_t *part) {
    WITH_CARD(device, NULL);
    if (index >= (u32)card->part_count) return leave(NVML_ERROR_NOT_FOUND);
    *part = handle_of(index_of(card), (int)index + 1);
    return leave(NVML_SUCCESS);
}
nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, u32 *id) {
    struct part *part;
    WITH_CARD(device, &part);
    if (!part) return leave(NVML_ERROR_NOT_SUPPORTED);
    *id = (u32)(part - card->parts) + 1;
    return leave(NVML_SUCCESS);
}
nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes) {
    struct part *part;
    WITH_CARD(device, &part);
    if (!part) return leave(NVML_ERROR_NOT_SUPPORTED);
    memset(attributes, 0, sizeof *attributes);
    attributes->gpuInstanceSliceCount = attributes->computeInstanceSliceCount = part->slices;
    attributes->memorySizeMB = part->megabytes;
    attributes->multiprocessorCount = 14 * part->slices;
    attributes->sharedCopyEngineCount = part->slices;
    return leave(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, u32 link, nvmlEnableState_t *active) {
    WITH_CARD(device, NULL);
    if (link >= (u32)card->link_count) return leave(card->link_count ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_NOT_SUPPORTED);
    *active = card->links[link].type != 255;
    return leave(NVML_SUCCESS);
}
nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, u32 link, nvmlIntNvLinkDeviceType_t *type) {
    WITH_CARD(device, NULL);
    if (link >= (u32)card->link_count) return leave(NVML_ERROR_INVALID_ARGUMENT);
    *type = card->links[link].type;
    return leave(NVML_SUCCESS);
}
nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, u32 link, nvmlPciInfo_t *pci) {
    WITH_CARD(device, NULL);
    if (link >= (u32)card->link_count) return leave(NVML_ERROR_INVALID_ARGUMENT);
    memset(pci, 0, sizeof *pci);
    pci->domain = card->links[link].domain, pci->bus = card->links[link].bus, pci->device = card->links[link].device;
    return leave(NVML_SUCCESS);
}

/* All processes of a card, or those of a MIG partition. */
static nvmlReturn_t list(nvmlDevice_t device, u32 mps, u32 *size, nvmlProcessInfo_v2_t *processes, const char *function) {
    u32 count = 0, room = *size, place = 0;
    struct card *card = NULL;
    struct part *part = NULL;
    nvmlReturn_t failed = enter(function);
    if (!failed) failed = card_of(device, function, &card, &part);
    if (failed) return leave(failed);
    if (part) place = (u32)(part - card->parts) + 1;
    for (int i = 0; i < card->running_count; i++) {
        struct running *running = &card->running[i];
        if (running->mps != mps || (place && running->part != place)) continue;
        if (processes && count < room) processes[count] = (nvmlProcessInfo_v2_t){running->pid, running->memory, running->part ? running->part : ~0u, ~0u};
        count++;
    }
    *size = count;
    return leave(count > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS);
}
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, u32 *size, nvmlProcessInfo_v2_t *processes) {
    return list(device, 0, size, processes, __func__);
}
nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, u32 *size, nvmlProcessInfo_v2_t *processes) {
    return list(device, 1, size, processes, __func__);
}
/* As drivers before R510 have it. */
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, u32 *size, nvmlProcessInfo_v2_t *processes) {
    return list(device, 0, size, processes, __func__);
}
nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v2(nvmlDevice_t device, u32 *size, nvmlProcessInfo_v2_t *processes) {
    return list(device, 1, size, processes, __func__);
}
/* The processes that computed after a moment; asked since 0, all that ever did. Not known in MIG mode. */
nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *loads, u32 *size, u64 since) {
    struct timespec now;
    u64 at, mig = 0;
    u32 count = 0;
    WITH_CARD(device, NULL);
    if (number(card, "mig_mode", &mig) == NVML_SUCCESS && mig) return leave(NVML_ERROR_NOT_SUPPORTED);
    clock_gettime(CLOCK_REALTIME, &now);
    if (number(card, "time", &at)) at = (u64)now.tv_sec * 1000000 + now.tv_nsec / 1000;
    for (int i = 0; at > since && i < card->running_count; i++) {
        if (!card->running[i].load) continue;
        if (loads && count < *size)
            loads[count] = (nvmlProcessUtilizationSample_t){card->running[i].pid, at, card->running[i].load, 0, 0, 0};
        count++;
    }
    failed = !count ? NVML_ERROR_NOT_FOUND : !loads || count > *size ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
    *size = count;
    return leave(failed);
}

static u32 told_mode(int index) {
    char path[4096], line[1024];
    int card; u32 mode, last = 0;
    beside("nvml.told", path, sizeof path);
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "compute_mode %d %u", &card, &mode) == 2 && card == index) last = mode;
    if (file) fclose(file);
    return last;
}
nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, nvmlComputeMode_t *mode) {
    WITH_CARD(device, NULL);
    *mode = told_mode(index_of(card));
    return leave(NVML_SUCCESS);
}
nvmlReturn_t nvmlDeviceSetComputeMode(nvmlDevice_t device, nvmlComputeMode_t mode) {
    char line[64];
    WITH_CARD(device, NULL);
    if (mode >= NVML_COMPUTEMODE_COUNT) return leave(NVML_ERROR_INVALID_ARGUMENT);
    snprintf(line, sizeof line, "compute_mode %d %u\n", index_of(card), mode);
    return leave(tell(line));
}

static nvmlReturn_t limitable(struct card *card, const char *path) {
    struct stat found;
    u64 mig = 0;
    if (state.cuda < 13040 || (number(card, "mig_mode", &mig) == NVML_SUCCESS && mig)) return NVML_ERROR_NOT_SUPPORTED;
    return stat(path, &found) == 0 && S_ISDIR(found.st_mode) ? NVML_SUCCESS : NVML_ERROR_OPERATING_SYSTEM;
}
nvmlReturn_t nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t device, nvmlSetMemoryLimits_v1_t *limits) {
    char line[1024];
    WITH_CARD(device, NULL);
    failed = limitable(card, limits->nameSpace);
    if (failed) return leave(failed);
    snprintf(line, sizeof line, "memory_limit %d %llu %llu %s\n", index_of(card), limits->softLimit, limits->hardLimit, limits->nameSpace);
    return leave(tell(line));
}
nvmlReturn_t nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t device, nvmlGetMemoryLimits_v1_t *limits) {
    char path[4096], line[1024], cgroup[512];
    int index; u64 soft, hard;
    WITH_CARD(device, NULL);
    failed = limitable(card, limits->nameSpace);
    if (failed) return leave(failed);
    limits->softLimit = 0, limits->hardLimit = NVML_DEVICE_MEMORY_LIMIT_MAX, limits->currentUsed = 0;
    beside("nvml.told", path, sizeof path);
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "memory_limit %d %llu %llu %511[^\n]", &index, &soft, &hard, cgroup) == 4
            && index == index_of(card) && !strcmp(cgroup, limits->nameSpace)) limits->softLimit = soft, limits->hardLimit = hard;
    if (file) fclose(file);
    for (int i = 0; i < card->cgroup_count; i++)
        if (!strcmp(card->cgroups[i].path, limits->nameSpace)) limits->currentUsed = card->cgroups[i].used;
    return leave(NVML_SUCCESS);
}

/* What no card here has. Programs of others take NOT_SUPPORTED for that, and FUNCTION_NOT_FOUND for a failure. */
#define NO_CARD_HAS(function, type) \
    nvmlReturn_t function(nvmlDevice_t device, type *answer) { \
        (void)answer; \
        WITH_CARD(device, NULL); \
        return leave(NVML_ERROR_NOT_SUPPORTED); \
    }
NO_CARD_HAS(nvmlDeviceGetAddressingMode, nvmlDeviceAddressingMode_t)

#define FABRIC_OF(card, info) \
    if (!card->joined) return leave(NVML_ERROR_NOT_SUPPORTED); \
    memcpy(info->clusterUuid, card->fabric, sizeof card->fabric); \
    info->cliqueId = card->clique, info->state = NVML_GPU_FABRIC_STATE_COMPLETED, info->status = NVML_SUCCESS; \
    return leave(NVML_SUCCESS)
nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, nvmlGpuFabricInfo_t *info) {
    WITH_CARD(device, NULL);
    FABRIC_OF(card, info);
}
nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, nvmlGpuFabricInfoV_t *info) {
    WITH_CARD(device, NULL);
    FABRIC_OF(card, info);
}

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set) {
    nvmlReturn_t failed = enter(__func__);
    if (!failed && !(*set = calloc(1, sizeof **set))) failed = NVML_ERROR_MEMORY;
    if (!failed) (*set)->seen = state.event_count;
    return leave(failed);
}
nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, u64 *types) {
    WITH_CARD(device, NULL);
    if (number(card, "event_types", types)) *types = nvmlEventTypeSingleBitEccError | nvmlEventTypeDoubleBitEccError | nvmlEventTypeXidCriticalError;
    return leave(NVML_SUCCESS);
}
nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, u64 types, nvmlEventSet_t set) {
    WITH_CARD(device, NULL);
    set->types[index_of(card)] |= types;
    return leave(NVML_SUCCESS);
}
nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set) {
    nvmlReturn_t failed = enter(__func__);
    if (!failed) free(set);
    return leave(failed);
}

/* What a wait finds at once: a lost card, the next event, or nothing (NVML_ERROR_TIMEOUT). */
static nvmlReturn_t pending(nvmlEventSet_t set, nvmlEventData_t *data) {
    u64 lost = 0;
    for (int i = 0; i < state.card_count; i++)
        if (set->types[i] && number(&state.cards[i], "lost", &lost) == NVML_SUCCESS && lost) return NVML_ERROR_GPU_IS_LOST;
    while (set->seen < state.event_count) {
        int n = set->seen++;
        u32 card = state.events[n].card;
        if (card >= (u32)state.card_count || !(set->types[card] & state.events[n].type)) continue;
        *data = (nvmlEventData_t){handle_of(card, 0), state.events[n].type, state.events[n].data, ~0u, ~0u};
        return NVML_SUCCESS;
    }
    return NVML_ERROR_TIMEOUT;
}
nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, u32 milliseconds) {
    const char *given = getenv("NVML_PAUSE");
    u32 pause = given ? strtoul(given, NULL, 10) : 5;
    for (u32 passed = 0;; passed += pause) {
        nvmlReturn_t found = enter(__func__);
        if (!found) found = pending(set, data);
        leave(found);
        if (found != NVML_ERROR_TIMEOUT || passed >= milliseconds) return found;
        usleep(1000 * pause);
    }
}
