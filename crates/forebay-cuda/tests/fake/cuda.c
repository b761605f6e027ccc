/* A CUDA driver with memory of the host in the place of a GPU's, for tests: functions of the driver API by their symbols, and fake_… to
 * look behind them. It is strict where the driver is lenient (a copy reads registered memory only), and late where that is allowed: copies
 * are carried out when their event is asked for. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned CUresult;

enum {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201,
    NOT_READY = 600,
    ALREADY_REGISTERED = 712,
    NOT_REGISTERED = 713,
    CAPTURE_UNSUPPORTED = 900,
};

enum { DEVICES = 2, MAX = 4096 };
static const uint64_t DEVICE_MEMORY = (uint64_t)1 << 52;

struct allocation { uint64_t address; size_t length; int device; unsigned char *bytes; };
struct range { uintptr_t start; size_t length; };
struct event { int is_used; size_t recorded, done; };
enum kind { COPY, RECORD, WAIT };
struct work { enum kind kind; uint64_t to; const void *from; size_t length; size_t event, records; };
struct stream { int is_used; size_t begin, count; struct work works[MAX]; };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static __thread void *current;
/* What the thread may do while a stream is captured: anything if this is 2. */
static __thread unsigned capture_mode;
/* That stream. */
static void *captured;
static int is_capturing;
static int is_begun;
static struct allocation allocations[MAX];
static struct range registered[MAX];
static struct event events[MAX];
/* The first one is the default stream. */
static struct stream streams[64] = {{.is_used = 1}};
static int retained[DEVICES];
static uint64_t allocated;
static size_t copied, copies, delay, questions, streams_followed;
static int takes_read_only = 1;
static char failing[64];
static int fails_after, fails_with;
static CUresult broken;

/* What a call answers before it does anything. */
static CUresult checked(const char *name, int wants_context) {
    if (!is_begun) return NOT_INITIALIZED;
    if (wants_context && current == NULL) return INVALID_CONTEXT;
    if (broken != SUCCESS && wants_context) return broken;
    if (is_capturing && wants_context && capture_mode != 2) return CAPTURE_UNSUPPORTED;
    if (fails_with != 0 && strcmp(failing, name) == 0 && fails_after-- == 0) {
        CUresult code = (CUresult)fails_with;
        fails_with = 0;
        if (strcmp(name, "cuEventQuery") == 0) {
            /* Nothing of the context goes on. */
            broken = code;
            for (size_t at = 0; at < 64; at++) streams[at].count = 0;
            for (size_t at = 0; at < MAX; at++) events[at].done = events[at].recorded;
        }
        return code;
    }
    return SUCCESS;
}

#define BEGIN(name, wants_context)                             \
    pthread_mutex_lock(&lock);                                 \
    CUresult result = checked(name, wants_context);            \
    if (result != SUCCESS) {                                   \
        pthread_mutex_unlock(&lock);                           \
        return result;                                         \
    }
#define END(value)                                             \
    do {                                                       \
        CUresult answer = (value);                             \
        pthread_mutex_unlock(&lock);                           \
        return answer;                                         \
    } while (0)

static struct allocation *allocation_of(uint64_t address, size_t length) {
    for (size_t at = 0; at < MAX; at++) {
        struct allocation *found = &allocations[at];
        if (found->bytes != NULL && address >= found->address && address - found->address < found->length)
            return length <= found->length - (address - found->address) ? found : NULL;
    }
    return NULL;
}

static int is_registered(uintptr_t start, size_t length) {
    for (size_t at = 0; at < MAX; at++) {
        struct range *found = &registered[at];
        if (found->length > 0 && start >= found->start && start + length <= found->start + found->length) return 1;
    }
    return 0;
}

/* Carries out what streams have, as far as they do not wait for one another. */
static void go_on(void) {
    for (int went_on = 1; went_on;) {
        went_on = 0;
        for (size_t at = 0; at < 64; at++) {
            struct stream *stream = &streams[at];
            if (!stream->is_used || stream->count == 0) continue;
            struct work *work = &stream->works[stream->begin];
            if (work->kind == WAIT && events[work->event].done < work->records) continue;
            if (work->kind == RECORD) events[work->event].done++;
            if (work->kind == COPY) {
                struct allocation *to = allocation_of(work->to, work->length);
                if (to == NULL || !is_registered((uintptr_t)work->from, work->length)) {
                    fprintf(stderr, "fake CUDA: a copy under way lost its memory\n");
                    abort();
                }
                memcpy(to->bytes + (work->to - to->address), work->from, work->length);
                copied += work->length;
                copies++;
            }
            stream->begin = (stream->begin + 1) % MAX;
            stream->count--;
            went_on = 1;
        }
    }
}

static CUresult push(void *handle, struct work work) {
    if ((uintptr_t)handle >= 64) return INVALID_VALUE;
    struct stream *stream = &streams[(uintptr_t)handle];
    if (!stream->is_used) return INVALID_VALUE;
    if (stream->count == MAX) return OUT_OF_MEMORY;
    stream->works[(stream->begin + stream->count++) % MAX] = work;
    return SUCCESS;
}

static struct event *event_of(void *handle) {
    uintptr_t number = (uintptr_t)handle;
    return number > 0 && number < MAX && events[number].is_used ? &events[number] : NULL;
}

CUresult cuInit(unsigned flags) {
    if (flags != 0) return INVALID_VALUE;
    is_begun = 1;
    return SUCCESS;
}

CUresult cuDriverGetVersion(int *version) {
    *version = 12040;
    return SUCCESS;
}

CUresult cuGetErrorName(CUresult code, const char **name) {
    switch (code) {
    case INVALID_VALUE: *name = "CUDA_ERROR_INVALID_VALUE"; return SUCCESS;
    case OUT_OF_MEMORY: *name = "CUDA_ERROR_OUT_OF_MEMORY"; return SUCCESS;
    case INVALID_CONTEXT: *name = "CUDA_ERROR_INVALID_CONTEXT"; return SUCCESS;
    case 700: *name = "CUDA_ERROR_ILLEGAL_ADDRESS"; return SUCCESS;
    case ALREADY_REGISTERED: *name = "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"; return SUCCESS;
    case NOT_REGISTERED: *name = "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED"; return SUCCESS;
    default: *name = NULL; return INVALID_VALUE;
    }
}

CUresult cuGetErrorString(CUresult code, const char **text) {
    *text = "words of the fake";
    return code == SUCCESS ? INVALID_VALUE : SUCCESS;
}

CUresult cuDeviceGetCount(int *count) {
    BEGIN("cuDeviceGetCount", 0)
    *count = DEVICES;
    END(SUCCESS);
}

CUresult cuDeviceGet(int *device, int ordinal) {
    BEGIN("cuDeviceGet", 0)
    *device = ordinal;
    END(ordinal >= 0 && ordinal < DEVICES ? SUCCESS : INVALID_DEVICE);
}

CUresult cuDeviceGetAttribute(int *value, int attribute, int device) {
    BEGIN("cuDeviceGetAttribute", 0)
    (void)device;
    *value = takes_read_only;
    END(attribute == 113 ? SUCCESS : INVALID_VALUE);
}

CUresult cuDevicePrimaryCtxRetain(void **context, int device) {
    BEGIN("cuDevicePrimaryCtxRetain", 0)
    retained[device]++;
    *context = &retained[device];
    END(SUCCESS);
}

CUresult cuDevicePrimaryCtxRelease_v2(int device) {
    BEGIN("cuDevicePrimaryCtxRelease", 0)
    retained[device]--;
    END(SUCCESS);
}

CUresult cuCtxSetCurrent(void *context) {
    current = context;
    return SUCCESS;
}

CUresult cuThreadExchangeStreamCaptureMode(unsigned *mode) {
    BEGIN("cuThreadExchangeStreamCaptureMode", 0)
    if (*mode > 2) END(INVALID_VALUE);
    unsigned before = capture_mode;
    capture_mode = *mode;
    *mode = before;
    END(SUCCESS);
}

CUresult cuPointerGetAttribute(void *answer, int attribute, uint64_t address) {
    BEGIN("cuPointerGetAttribute", 0)
    struct allocation *found = allocation_of(address, 1);
    if (found == NULL && is_registered((uintptr_t)address, 1) && attribute == 2) {
        *(unsigned *)answer = 1;
        END(SUCCESS);
    }
    if (found == NULL) END(INVALID_VALUE);
    if (attribute == 2) *(unsigned *)answer = 2;
    else if (attribute == 9) *(int *)answer = found->device;
    else END(INVALID_VALUE);
    END(SUCCESS);
}

CUresult cuMemHostRegister_v2(void *start, size_t length, unsigned flags) {
    BEGIN("cuMemHostRegister", 1)
    uintptr_t from = (uintptr_t)start;
    if (from % 4096 != 0 || length == 0 || (flags & ~9u) != 0) END(INVALID_VALUE);
    if ((flags & 8) != 0 && !takes_read_only) END(INVALID_VALUE);
    for (size_t at = 0; at < MAX; at++) {
        struct range *other = &registered[at];
        if (other->length > 0 && other->start < from + length && from < other->start + other->length)
            END(ALREADY_REGISTERED);
    }
    for (size_t at = 0; at < MAX; at++) {
        if (registered[at].length == 0) {
            registered[at] = (struct range){from, length};
            END(SUCCESS);
        }
    }
    END(OUT_OF_MEMORY);
}

CUresult cuMemHostUnregister(void *start) {
    BEGIN("cuMemHostUnregister", 1)
    for (size_t at = 0; at < MAX; at++) {
        if (registered[at].length > 0 && registered[at].start == (uintptr_t)start) {
            registered[at].length = 0;
            END(SUCCESS);
        }
    }
    END(NOT_REGISTERED);
}

CUresult cuStreamCreate(void **stream, unsigned flags) {
    BEGIN("cuStreamCreate", 1)
    (void)flags;
    for (uintptr_t at = 1; at < 64; at++) {
        if (!streams[at].is_used) {
            streams[at].is_used = 1;
            streams[at].count = 0;
            *stream = (void *)at;
            END(SUCCESS);
        }
    }
    END(OUT_OF_MEMORY);
}

CUresult cuStreamDestroy_v2(void *stream) {
    BEGIN("cuStreamDestroy", 1)
    streams[(uintptr_t)stream].is_used = 0;
    END(SUCCESS);
}

CUresult cuStreamWaitEvent(void *stream, void *event, unsigned flags) {
    BEGIN("cuStreamWaitEvent", 1)
    struct event *found = event_of(event);
    if (found == NULL || flags != 0) END(INVALID_VALUE);
    streams_followed++;
    END(push(stream, (struct work){.kind = WAIT, .event = (uintptr_t)event, .records = found->recorded}));
}

CUresult cuStreamIsCapturing(void *stream, unsigned *status) {
    BEGIN("cuStreamIsCapturing", 0)
    *status = is_capturing && stream == captured;
    END(SUCCESS);
}

CUresult cuEventCreate(void **event, unsigned flags) {
    BEGIN("cuEventCreate", 1)
    (void)flags;
    for (uintptr_t at = 1; at < MAX; at++) {
        if (!events[at].is_used) {
            events[at] = (struct event){.is_used = 1};
            *event = (void *)at;
            END(SUCCESS);
        }
    }
    END(OUT_OF_MEMORY);
}

CUresult cuEventDestroy_v2(void *event) {
    BEGIN("cuEventDestroy", 1)
    struct event *found = event_of(event);
    if (found == NULL) END(INVALID_VALUE);
    found->is_used = 0;
    END(SUCCESS);
}

CUresult cuEventRecord(void *event, void *stream) {
    BEGIN("cuEventRecord", 1)
    struct event *found = event_of(event);
    if (found == NULL) END(INVALID_VALUE);
    CUresult pushed = push(stream, (struct work){.kind = RECORD, .event = (uintptr_t)event});
    if (pushed == SUCCESS) found->recorded++;
    END(pushed);
}

CUresult cuEventQuery(void *event) {
    BEGIN("cuEventQuery", 1)
    struct event *found = event_of(event);
    if (found == NULL) END(INVALID_VALUE);
    if (++questions > delay) {
        questions = 0;
        go_on();
    }
    END(found->done == found->recorded ? SUCCESS : NOT_READY);
}

CUresult cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t length, void *stream) {
    BEGIN("cuMemcpyHtoDAsync", 1)
    if (allocation_of(to, length) == NULL || !is_registered((uintptr_t)from, length)) END(INVALID_VALUE);
    END(push(stream, (struct work){.kind = COPY, .to = to, .from = from, .length = length}));
}

/* Of tests. */

uint64_t fake_allocate(int device, size_t length) {
    pthread_mutex_lock(&lock);
    uint64_t address = 0;
    for (size_t at = 0; at < MAX && address == 0; at++) {
        if (allocations[at].bytes == NULL) {
            address = DEVICE_MEMORY + allocated;
            /* There is a hole behind it. */
            allocated += (length / 4096 + 2) * 4096;
            allocations[at] = (struct allocation){address, length, device, calloc(length ? length : 1, 1)};
        }
    }
    pthread_mutex_unlock(&lock);
    return address;
}

void fake_free(uint64_t address) {
    pthread_mutex_lock(&lock);
    for (size_t at = 0; at < MAX; at++) {
        if (allocations[at].bytes != NULL && allocations[at].address == address) {
            free(allocations[at].bytes);
            allocations[at].bytes = NULL;
        }
    }
    pthread_mutex_unlock(&lock);
}

int fake_read(uint64_t address, void *into, size_t length) {
    pthread_mutex_lock(&lock);
    struct allocation *found = allocation_of(address, length);
    if (found != NULL) memcpy(into, found->bytes + (address - found->address), length);
    pthread_mutex_unlock(&lock);
    return found != NULL;
}

/* The call `name` fails with `code` after it has succeeded so often; with 0, none does, and a broken context is whole again. */
void fake_fail(const char *name, int after, int code) {
    pthread_mutex_lock(&lock);
    snprintf(failing, sizeof failing, "%s", name);
    fails_after = after;
    fails_with = code;
    if (code == 0) broken = SUCCESS;
    pthread_mutex_unlock(&lock);
}

/* Copies end when their event was asked for so many times. */
void fake_delay(size_t times) {
    pthread_mutex_lock(&lock);
    delay = times;
    pthread_mutex_unlock(&lock);
}

/* From now on the stream `handle` is captured, by another thread than those that ask for anything; or none is. */
void fake_capture(int is_captured, uint64_t handle) {
    pthread_mutex_lock(&lock);
    is_capturing = is_captured;
    captured = (void *)(uintptr_t)handle;
    pthread_mutex_unlock(&lock);
}

void fake_take_read_only(int takes) {
    pthread_mutex_lock(&lock);
    takes_read_only = takes;
    pthread_mutex_unlock(&lock);
}

size_t fake_registered(void) {
    pthread_mutex_lock(&lock);
    size_t bytes = 0;
    for (size_t at = 0; at < MAX; at++) bytes += registered[at].length;
    pthread_mutex_unlock(&lock);
    return bytes;
}

size_t fake_copied(void) {
    pthread_mutex_lock(&lock);
    size_t bytes = copied;
    pthread_mutex_unlock(&lock);
    return bytes;
}

size_t fake_copies(void) {
    pthread_mutex_lock(&lock);
    size_t count = copies;
    pthread_mutex_unlock(&lock);
    return count;
}

size_t fake_followed(void) {
    pthread_mutex_lock(&lock);
    size_t count = streams_followed;
    pthread_mutex_unlock(&lock);
    return count;
}

/* Registrations, streams, events and contexts that are in use. */
int fake_in_use(void) {
    pthread_mutex_lock(&lock);
    int count = 0;
    for (size_t at = 0; at < MAX; at++) count += (registered[at].length > 0) + events[at].is_used;
    for (size_t at = 1; at < 64; at++) count += streams[at].is_used;
    for (size_t at = 0; at < DEVICES; at++) count += retained[at];
    pthread_mutex_unlock(&lock);
    return count;
}
