/* A stand-in for NVIDIA's libnvidia-ml.so.1: the calls Shoal makes, answered from a file.
 *
 * The file `nvml.txt` lies beside the library and is read again whenever it changes. One word and its values a line:
 *
 *   driver 615.71.05              the driver; `cuda 13040` is its CUDA version
 *   error FUNCTION CODE           the function fails with this NVML error; after a `card` line, only for that card
 *   event CARD TYPE DATA          an event of NVML's type, delivered once to each event set made before it was written
 *   card UUID                     begins a card; its index is its place. What follows is about it
 *   name NVIDIA A30               its product name
 *   KEY NUMBER                    a reading (see the functions below); a reading that is not given is not supported
 *   process PID BYTES LOAD MPS    a process, by MPS or not (1, 0)
 *   remapped CORRECTED UNCORRECTED PENDING FAILED
 *   link TYPE DOMAIN BUS DEVICE   the next NVLink and its other end: 0 a card, 2 a switch, 255 inactive
 *   mig SLICES MEGABYTES UUID NAME…
 *   cgroup BYTES PATH             what a cgroup uses of the card
 *
 * Other lines are ignored. The environment's NVML_PAUSE is how many milliseconds pass between looks for events, 5 by
 * default. What the library is told to do it adds to `nvml.told`: `compute_mode CARD MODE`,
 * `memory_limit CARD SOFT HARD PATH`. Layouts are those of NVML's public header; tests compare their sizes.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { OK, UNINITIALIZED, INVALID, UNSUPPORTED, FORBIDDEN, NOT_FOUND = 6, TOO_SMALL = 7, TIMEOUT = 10, LOST = 15 };
enum { CARDS = 64, NUMBERS = 64, PROCESSES = 128, LINKS = 36, PARTS = 8, CGROUPS = 64, EVENTS = 1024, ERRORS = 32 };
typedef unsigned int u32;
typedef unsigned long long u64;

struct memory { u64 total, free, used; };
struct memory_v2 { u32 version; u64 total, reserved, free, used; };
struct pci { char legacy[16]; u32 domain, bus, device, id, subsystem; char bus_id[32]; };
struct utilisation { u32 gpu, memory; };
struct process { u32 pid; u64 memory; u32 instance, compute_instance; };
struct process_load { u32 pid; u64 timestamp; u32 sm, memory, encoder, decoder; };
struct event_data { void *device; u64 type, data; u32 instance, compute_instance; };
struct attributes { u32 processors, copy, decoders, encoders, jpeg, ofa, slices, compute_slices; u64 megabytes; };
struct field { u32 id, scope; long long timestamp, latency; int type, result; union { u64 number; u32 small; } value; };
struct limits { const char *path; u64 soft, hard, used; };

struct number { char key[32]; u64 value; };
struct error { char function[64]; int code; };
struct running { u32 pid; u64 memory; u32 load, mps; };
struct link { u32 type, domain, bus, device; };
struct part { u32 slices; u64 megabytes; char uuid[96], name[96]; };
struct cgroup { u64 used; char path[512]; };
struct card {
    char uuid[96], name[96];
    u32 remapped[4]; int remaps;
    struct number numbers[NUMBERS]; int number_count;
    struct running running[PROCESSES]; int running_count;
    struct link links[LINKS]; int link_count;
    struct part parts[PARTS]; int part_count;
    struct cgroup cgroups[CGROUPS]; int cgroup_count;
    struct error errors[ERRORS]; int error_count;
};
static struct {
    char driver[80]; int cuda;
    struct card cards[CARDS]; int card_count;
    struct { u32 card; u64 type, data; } events[EVENTS]; int event_count;
    struct error errors[ERRORS]; int error_count;
} state;
struct event_set { int seen; u64 types[CARDS]; };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct stat read_at;
static int initialised;

static void beside(const char *name, char *path, size_t size) {
    Dl_info info;
    const char *slash = dladdr((void *)&state, &info) ? strrchr(info.dli_fname, '/') : NULL;
    snprintf(path, size, "%.*s%s", slash ? (int)(slash - info.dli_fname + 1) : 0, slash ? info.dli_fname : "", name);
}

static void add_error(struct error *errors, int *count, const char *text) {
    struct error found;
    if (*count < ERRORS && sscanf(text, "%63s %d", found.function, &found.code) == 2) errors[(*count)++] = found;
}

static void read_card_line(struct card *card, const char *word, const char *rest) {
    struct running running; struct link link; struct part part = {0}; struct cgroup cgroup; struct number number;
    if (!strcmp(word, "name")) snprintf(card->name, sizeof card->name, "%s", rest);
    else if (!strcmp(word, "process")) {
        if (card->running_count < PROCESSES
            && sscanf(rest, "%u %llu %u %u", &running.pid, &running.memory, &running.load, &running.mps) == 4)
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

static int failing(const struct error *errors, int count, const char *function) {
    for (int i = 0; i < count; i++) if (!strcmp(errors[i].function, function)) return errors[i].code;
    return OK;
}

static int number(const struct card *card, const char *key, u64 *value) {
    for (int i = 0; i < card->number_count; i++)
        if (!strcmp(card->numbers[i].key, key)) { *value = card->numbers[i].value; return OK; }
    return UNSUPPORTED;
}

static void *handle_of(int card, int part) { return (void *)(size_t)(0x10000 + card * 0x100 + part); }

/* The card of a handle; a MIG partition's handle is its card's and the partition's place, from 1. */
static int card_of(void *device, const char *function, struct card **card, struct part **part) {
    size_t number_ = (size_t)device - 0x10000, index = number_ >> 8, place = number_ & 0xff;
    u64 lost = 0;
    if (index >= (size_t)state.card_count) return INVALID;
    *card = &state.cards[index];
    if (place > (size_t)(*card)->part_count || (place && !part)) return INVALID;
    if (part) *part = place ? &(*card)->parts[place - 1] : NULL;
    if (number(*card, "lost", &lost) == OK && lost) return LOST;
    return failing((*card)->errors, (*card)->error_count, function);
}

static int enter(const char *function) {
    pthread_mutex_lock(&lock);
    refresh();
    return initialised ? failing(state.errors, state.error_count, function) : UNINITIALIZED;
}

static int leave(int result) { pthread_mutex_unlock(&lock); return result; }

#define WITH_CARD(device, part) \
    struct card *card = NULL; \
    int failed = enter(__func__); \
    if (!failed) failed = card_of(device, __func__, &card, part); \
    if (failed) return leave(failed)

static int text(const char *value, char *buffer, u32 size) {
    if (strlen(value) + 1 > size) return TOO_SMALL;
    strcpy(buffer, value);
    return OK;
}

/* Appends to what the library was told; finds the last thing told that begins like this. */
static int tell(const char *line) {
    char path[4096];
    beside("nvml.told", path, sizeof path);
    FILE *file = fopen(path, "a");
    if (!file) return FORBIDDEN;
    fputs(line, file);
    fclose(file);
    return OK;
}

static int index_of(const struct card *card) { return (int)(card - state.cards); }

int nvmlInitWithFlags(u32 flags) {
    (void)flags;
    pthread_mutex_lock(&lock);
    refresh();
    int failed = failing(state.errors, state.error_count, __func__);
    if (!failed) initialised++;
    return leave(failed);
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) {
    int failed = enter(__func__);
    if (initialised) initialised--;
    return leave(failed);
}
const char *nvmlErrorString(int code) { (void)code; return "an error of the stand-in"; }

int nvmlSystemGetDriverVersion(char *buffer, u32 size) {
    int failed = enter(__func__);
    return leave(failed ? failed : text(state.driver, buffer, size));
}
int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    int failed = enter(__func__);
    *version = state.cuda;
    return leave(failed);
}
int nvmlDeviceGetCount_v2(u32 *count) {
    int failed = enter(__func__);
    *count = state.card_count;
    return leave(failed);
}
int nvmlDeviceGetHandleByIndex_v2(u32 index, void **device) {
    WITH_CARD(handle_of(index < CARDS ? (int)index : CARDS, 0), NULL);
    *device = handle_of(index, 0);
    return leave(OK);
}
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    int failed = enter(__func__);
    for (int i = 0; !failed && i < state.card_count; i++)
        if (!strcmp(state.cards[i].uuid, uuid)) {
            struct card *card;
            *device = handle_of(i, 0);
            return leave(card_of(*device, __func__, &card, NULL));
        }
    return leave(failed ? failed : NOT_FOUND);
}

int nvmlDeviceGetUUID(void *device, char *buffer, u32 size) {
    struct part *part;
    WITH_CARD(device, &part);
    return leave(text(part ? part->uuid : card->uuid, buffer, size));
}
int nvmlDeviceGetName(void *device, char *buffer, u32 size) {
    struct part *part;
    WITH_CARD(device, &part);
    return leave(text(part ? part->name : card->name, buffer, size));
}
int nvmlDeviceGetMemoryInfo(void *device, struct memory *memory) {
    u64 reserved = 0;
    WITH_CARD(device, NULL);
    failed = number(card, "memory", &memory->total) || number(card, "used", &memory->used);
    number(card, "reserved", &reserved);
    memory->used += reserved; /* the older call does not tell them apart */
    memory->free = memory->total - memory->used;
    return leave(failed ? UNSUPPORTED : OK);
}
int nvmlDeviceGetMemoryInfo_v2(void *device, struct memory_v2 *memory) {
    WITH_CARD(device, NULL);
    failed = number(card, "memory", &memory->total) || number(card, "used", &memory->used)
        || number(card, "reserved", &memory->reserved);
    memory->free = memory->total - memory->used - memory->reserved;
    return leave(failed ? UNSUPPORTED : memory->version != 0x02000028 ? 25 : OK);
}
int nvmlDeviceGetPciInfo_v3(void *device, struct pci *pci) {
    u64 domain, bus, place;
    WITH_CARD(device, NULL);
    if (number(card, "domain", &domain) || number(card, "bus", &bus) || number(card, "device", &place))
        return leave(UNSUPPORTED);
    memset(pci, 0, sizeof *pci);
    pci->domain = domain, pci->bus = bus, pci->device = place;
    snprintf(pci->bus_id, sizeof pci->bus_id, "%08X:%02X:%02X.0", pci->domain, pci->bus, pci->device);
    return leave(OK);
}
int nvmlDeviceGetMemoryAffinity(void *device, u32 size, unsigned long *nodes, u32 scope) {
    u64 node;
    (void)scope;
    WITH_CARD(device, NULL);
    if (number(card, "numa", &node)) return leave(UNSUPPORTED);
    if (node / 64 >= size) return leave(TOO_SMALL);
    memset(nodes, 0, size * sizeof *nodes);
    nodes[node / 64] = 1UL << node % 64;
    return leave(OK);
}
int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) {
    u64 high, low;
    WITH_CARD(device, NULL);
    if (number(card, "cc_major", &high) || number(card, "cc_minor", &low)) return leave(UNSUPPORTED);
    *major = high, *minor = low;
    return leave(OK);
}

#define READING(function, key) \
    int function(void *device, u32 *value) { \
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

#define CHOSEN(function, ...) \
    int function(void *device, u32 choice, u32 *value) { \
        static const char *keys[] = {__VA_ARGS__}; \
        u64 found = 0; \
        WITH_CARD(device, NULL); \
        if (choice >= sizeof keys / sizeof *keys) return leave(INVALID); \
        failed = number(card, keys[choice], &found); \
        *value = found; \
        return leave(failed); \
    }
CHOSEN(nvmlDeviceGetTemperature, "temperature")
CHOSEN(nvmlDeviceGetTemperatureThreshold, "shutdown", "slowdown", "memory_max", "gpu_max")
CHOSEN(nvmlDeviceGetClockInfo, "graphics_clock", "sm_clock", "memory_clock")
CHOSEN(nvmlDeviceGetMaxClockInfo, "graphics_max", "sm_max", "memory_clock_max")
CHOSEN(nvmlDeviceGetPcieThroughput, "pcie_sent", "pcie_received")

#define PAIR(function, first, second) \
    int function(void *device, u32 *one, u32 *two) { \
        u64 a = 0, b = 0; \
        WITH_CARD(device, NULL); \
        failed = number(card, first, &a); \
        number(card, second, &b); \
        *one = a, *two = b; \
        return leave(failed); \
    }
PAIR(nvmlDeviceGetEccMode, "ecc", "ecc")
PAIR(nvmlDeviceGetMigMode, "mig_mode", "mig_mode")
PAIR(nvmlDeviceGetEncoderUtilization, "encoder", "period")
PAIR(nvmlDeviceGetDecoderUtilization, "decoder", "period")

int nvmlDeviceGetUtilizationRates(void *device, struct utilisation *rates) {
    u64 gpu = 0, memory = 0;
    WITH_CARD(device, NULL);
    failed = number(card, "load", &gpu) || number(card, "memory_load", &memory);
    rates->gpu = gpu, rates->memory = memory;
    return leave(failed ? UNSUPPORTED : OK);
}
int nvmlDeviceGetTotalEnergyConsumption(void *device, u64 *energy) {
    WITH_CARD(device, NULL);
    return leave(number(card, "energy", energy));
}
int nvmlDeviceGetTotalEccErrors(void *device, u32 type, u32 counter, u64 *count) {
    (void)counter;
    WITH_CARD(device, NULL);
    return leave(number(card, type ? "ecc_uncorrected" : "ecc_corrected", count));
}

int nvmlDeviceGetRemappedRows(void *device, u32 *corrected, u32 *uncorrected, u32 *pending_, u32 *failed_) {
    WITH_CARD(device, NULL);
    *corrected = card->remapped[0], *uncorrected = card->remapped[1];
    *pending_ = card->remapped[2], *failed_ = card->remapped[3];
    return leave(card->remaps ? OK : UNSUPPORTED);
}
int nvmlDeviceGetFieldValues(void *device, int count, struct field *fields) {
    WITH_CARD(device, NULL);
    for (int i = 0; i < count; i++) {
        u64 found = 0;
        fields[i].result = fields[i].id == 82 ? number(card, "memory_temperature", &found) : UNSUPPORTED;
        fields[i].type = 1;
        fields[i].value.small = found;
    }
    return leave(OK);
}

int nvmlDeviceGetMaxMigDeviceCount(void *device, u32 *count) {
    u64 mode = 0;
    WITH_CARD(device, NULL);
    *count = number(card, "mig_mode", &mode) ? 0 : 7;
    return leave(OK);
}
int nvmlDeviceGetMigDeviceHandleByIndex(void *device, u32 index, void **part) {
    WITH_CARD(device, NULL);
    if (index >= (u32)card->part_count) return leave(NOT_FOUND);
    *part = handle_of(index_of(card), (int)index + 1);
    return leave(OK);
}
int nvmlDeviceGetAttributes_v2(void *device, struct attributes *attributes) {
    struct part *part;
    WITH_CARD(device, &part);
    if (!part) return leave(UNSUPPORTED);
    memset(attributes, 0, sizeof *attributes);
    attributes->slices = attributes->compute_slices = part->slices;
    attributes->megabytes = part->megabytes;
    return leave(OK);
}

int nvmlDeviceGetNvLinkState(void *device, u32 link, u32 *active) {
    WITH_CARD(device, NULL);
    if (link >= (u32)card->link_count) return leave(card->link_count ? INVALID : UNSUPPORTED);
    *active = card->links[link].type != 255;
    return leave(OK);
}
int nvmlDeviceGetNvLinkRemoteDeviceType(void *device, u32 link, u32 *type) {
    WITH_CARD(device, NULL);
    if (link >= (u32)card->link_count) return leave(INVALID);
    *type = card->links[link].type;
    return leave(OK);
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *device, u32 link, struct pci *pci) {
    WITH_CARD(device, NULL);
    if (link >= (u32)card->link_count) return leave(INVALID);
    memset(pci, 0, sizeof *pci);
    pci->domain = card->links[link].domain, pci->bus = card->links[link].bus, pci->device = card->links[link].device;
    return leave(OK);
}

static int list(struct card *card, u32 mps, u32 *size, struct process *processes) {
    u32 count = 0, room = *size;
    for (int i = 0; i < card->running_count; i++) {
        struct running *running = &card->running[i];
        if (running->mps != mps) continue;
        if (processes && count < room) processes[count] = (struct process){running->pid, running->memory, ~0u, ~0u};
        count++;
    }
    *size = count;
    return count > room ? TOO_SMALL : OK;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, u32 *size, struct process *processes) {
    WITH_CARD(device, NULL);
    return leave(list(card, 0, size, processes));
}
int nvmlDeviceGetMPSComputeRunningProcesses_v3(void *device, u32 *size, struct process *processes) {
    WITH_CARD(device, NULL);
    return leave(list(card, 1, size, processes));
}
/* As drivers before R510 have it. */
int nvmlDeviceGetComputeRunningProcesses_v2(void *device, u32 *size, struct process *processes) {
    WITH_CARD(device, NULL);
    return leave(list(card, 0, size, processes));
}
int nvmlDeviceGetMPSComputeRunningProcesses_v2(void *device, u32 *size, struct process *processes) {
    WITH_CARD(device, NULL);
    return leave(list(card, 1, size, processes));
}
int nvmlDeviceGetProcessUtilization(void *device, struct process_load *loads, u32 *size, u64 since) {
    (void)since;
    WITH_CARD(device, NULL);
    u32 room = *size;
    *size = card->running_count;
    if (!card->running_count) return leave(NOT_FOUND);
    if (!loads || room < *size) return leave(TOO_SMALL);
    for (u32 i = 0; i < *size; i++)
        loads[i] = (struct process_load){card->running[i].pid, 1000 + i, card->running[i].load, 0, 0, 0};
    return leave(OK);
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
int nvmlDeviceGetComputeMode(void *device, u32 *mode) {
    WITH_CARD(device, NULL);
    *mode = told_mode(index_of(card));
    return leave(OK);
}
int nvmlDeviceSetComputeMode(void *device, u32 mode) {
    char line[64];
    WITH_CARD(device, NULL);
    if (mode > 3) return leave(INVALID);
    snprintf(line, sizeof line, "compute_mode %d %u\n", index_of(card), mode);
    return leave(tell(line));
}

static int limitable(struct card *card, const char *path) {
    struct stat found;
    u64 mig = 0;
    if (state.cuda < 13040 || (number(card, "mig_mode", &mig) == OK && mig)) return UNSUPPORTED;
    return stat(path, &found) == 0 && S_ISDIR(found.st_mode) ? OK : NOT_FOUND;
}
int nvmlDeviceSetMemoryLimits_v1(void *device, struct limits *limits) {
    char line[1024];
    WITH_CARD(device, NULL);
    failed = limitable(card, limits->path);
    if (failed) return leave(failed);
    snprintf(line, sizeof line, "memory_limit %d %llu %llu %s\n", index_of(card), limits->soft, limits->hard, limits->path);
    return leave(tell(line));
}
int nvmlDeviceGetMemoryLimits_v1(void *device, struct limits *limits) {
    char path[4096], line[1024], cgroup[512];
    int index; u64 soft, hard;
    WITH_CARD(device, NULL);
    failed = limitable(card, limits->path);
    if (failed) return leave(failed);
    limits->soft = 0, limits->hard = ~0ull, limits->used = 0;
    beside("nvml.told", path, sizeof path);
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "memory_limit %d %llu %llu %511[^\n]", &index, &soft, &hard, cgroup) == 4
            && index == index_of(card) && !strcmp(cgroup, limits->path)) limits->soft = soft, limits->hard = hard;
    if (file) fclose(file);
    for (int i = 0; i < card->cgroup_count; i++)
        if (!strcmp(card->cgroups[i].path, limits->path)) limits->used = card->cgroups[i].used;
    return leave(OK);
}

int nvmlEventSetCreate(struct event_set **set) {
    int failed = enter(__func__);
    if (!failed && !(*set = calloc(1, sizeof **set))) failed = 20;
    if (!failed) (*set)->seen = state.event_count;
    return leave(failed);
}
int nvmlDeviceGetSupportedEventTypes(void *device, u64 *types) {
    WITH_CARD(device, NULL);
    if (number(card, "event_types", types)) *types = 0x1 | 0x2 | 0x8;
    return leave(OK);
}
int nvmlDeviceRegisterEvents(void *device, u64 types, struct event_set *set) {
    WITH_CARD(device, NULL);
    set->types[index_of(card)] |= types;
    return leave(OK);
}
int nvmlEventSetFree(struct event_set *set) {
    int failed = enter(__func__);
    if (!failed) free(set);
    return leave(failed);
}

/* What a wait finds at once: a lost card, the next event, or nothing (TIMEOUT). */
static int pending(struct event_set *set, struct event_data *data) {
    u64 lost = 0;
    for (int i = 0; i < state.card_count; i++)
        if (set->types[i] && number(&state.cards[i], "lost", &lost) == OK && lost) return LOST;
    while (set->seen < state.event_count) {
        int n = set->seen++;
        u32 card = state.events[n].card;
        if (card >= (u32)state.card_count || !(set->types[card] & state.events[n].type)) continue;
        *data = (struct event_data){handle_of(card, 0), state.events[n].type, state.events[n].data, ~0u, ~0u};
        return OK;
    }
    return TIMEOUT;
}
int nvmlEventSetWait_v2(struct event_set *set, struct event_data *data, u32 milliseconds) {
    const char *given = getenv("NVML_PAUSE");
    u32 pause = given ? strtoul(given, NULL, 10) : 5;
    for (u32 passed = 0;; passed += pause) {
        int found = enter(__func__);
        if (!found) found = pending(set, data);
        leave(found);
        if (found != TIMEOUT || passed >= milliseconds) return found;
        usleep(1000 * pause);
    }
}
