/* Reads a file in three ways, and lists the directory that it is in:
 *
 *     cc -std=c99 -I crates/forebay-c/include crates/forebay-c/examples/read.c -L target/release -lforebay_c -o read
 *     LD_LIBRARY_PATH=target/release ./read file:///srv/datasets /labels.txt
 */
#include <forebay.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void must(int outcome, const char *what) {
    if (outcome != 0) {
        fprintf(stderr, "%s: %s (errno %d)\n", what, forebay_error_message(), -outcome);
        exit(1);
    }
}

static int print_name(void *context, const char *path, const forebay_entry *entry) {
    (void)context;
    printf("%s %llu\n", path, (unsigned long long)entry->size);
    return 0;
}

/* The whole file, in one call. */
static void read_at_once(forebay_client *client, const char *path, unsigned char *bytes, size_t size) {
    forebay_range range = {.path = path, .length = size, .into = bytes};
    size_t got = 0;
    must(forebay_read(client, &range, 1, &got), "read");
    printf("read %zu of %zu\n", got, size);
}

/* Both halves at a time, while this thread looks now and then. */
static void read_meanwhile(forebay_client *client, const forebay_file *file, unsigned char *bytes, size_t size) {
    size_t half = size / 2, got[2] = {0, 0};
    forebay_range ranges[2] = {
        {.file = file, .offset = 0, .length = half, .into = bytes},
        {.file = file, .offset = half, .length = size - half, .into = bytes + half},
    };
    forebay_operation *operation = NULL;
    must(forebay_begin(client, ranges, 2, &operation), "begin");
    int outcome = forebay_wait(operation, 0, got);
    while (outcome == 1) {
        outcome = forebay_wait(operation, 100, got);
    }
    must(outcome, "wait");
    forebay_operation_free(operation);
    printf("got %zu and %zu\n", got[0], got[1]);
}

/* Where the bytes lie in the cache. */
static void compare_view(forebay_client *client, const forebay_file *file, const unsigned char *bytes, size_t size) {
    forebay_view *view = NULL;
    must(forebay_view_new(client, file, 0, size, &view), "view");
    size_t length = 0;
    const void *shown = forebay_view_bytes(view, &length, NULL);
    printf("view %s\n", length == size && memcmp(shown, bytes, size) == 0 ? "equal" : "different");
    forebay_view_free(view);
}

int main(int count, char **arguments) {
    if (count != 3) {
        fprintf(stderr, "usage: read ORIGIN PATH, with libforebay_c %s\n", forebay_version());
        return 2;
    }
    forebay_setting settings[] = {{"up", arguments[1]}, {"worker.memory.size", "64MiB"}};
    forebay_client *client = NULL;
    must(forebay_client_start(settings, 2, &client), "start");
    must(forebay_list(client, "/", print_name, NULL), "list");
    forebay_entry entry;
    forebay_file *file = NULL;
    must(forebay_open(client, arguments[2], &file, &entry), "open");
    size_t size = (size_t)entry.size;
    unsigned char *bytes = calloc(size + 1, 1), *again = calloc(size + 1, 1);
    read_at_once(client, arguments[2], bytes, size);
    read_meanwhile(client, file, again, size);
    printf("twice %s\n", memcmp(bytes, again, size) == 0 ? "equal" : "different");
    compare_view(client, file, bytes, size);
    fwrite(bytes, 1, size, stdout);
    forebay_close(file);
    forebay_client_free(client);
    free(bytes);
    free(again);
    return 0;
}
