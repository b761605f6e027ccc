/* Writes a file in two ways, and reads it while it waits for nothing but poll(2):
 *
 *     cc -std=c99 -I crates/forebay-c/include crates/forebay-c/examples/write.c -L target/release -lforebay_c -o write
 *     LD_LIBRARY_PATH=target/release ./write file:///srv/datasets /hello.txt
 */
#include <forebay.h>

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

static void must(int outcome, const char *what) {
    if (outcome != 0) {
        fprintf(stderr, "%s: %s (errno %d)\n", what, forebay_error_message(), -outcome);
        exit(1);
    }
}

/* The whole file, in one call; and not a second time, where there is to be a new one. */
static void write_at_once(forebay_client *client, const char *path) {
    const char text[] = "written at once\n";
    forebay_entry entry;
    must(forebay_put(client, path, text, strlen(text), true, &entry), "put");
    printf("put %llu\n", (unsigned long long)entry.size);
    if (forebay_put(client, path, text, strlen(text), true, NULL) == -EEXIST) {
        printf("it is there already\n");
    }
}

/* Piece by piece: nobody sees the new file before it is finished. */
static void write_in_pieces(forebay_client *client, const char *path) {
    forebay_upload *upload = NULL;
    forebay_entry entry;
    must(forebay_create(client, path, false, &upload), "create");
    for (int number = 0; number < 1000; number++) {
        char line[32];
        int length = snprintf(line, sizeof line, "line %d\n", number);
        must(forebay_write(upload, line, (size_t)length), "write");
    }
    must(forebay_stat(client, path, true, &entry), "stat");
    printf("before %llu\n", (unsigned long long)entry.size);
    must(forebay_finish(upload, &entry), "finish");
    printf("after %llu\n", (unsigned long long)entry.size);
    forebay_upload_free(upload);
}

/* What is not finished never was. */
static void give_up(forebay_client *client, const char *path) {
    forebay_upload *upload = NULL;
    forebay_entry entry;
    must(forebay_create(client, path, false, &upload), "create");
    must(forebay_write(upload, "no", 2), "write");
    forebay_upload_free(upload);
    must(forebay_stat(client, path, true, &entry), "stat");
    printf("given up %llu\n", (unsigned long long)entry.size);
}

/* Reads both halves as two operations that tell the same descriptor. */
static void read_by_poll(forebay_client *client, const char *path) {
    forebay_entry entry;
    must(forebay_stat(client, path, false, &entry), "stat");
    size_t size = (size_t)entry.size, half = size / 2, got[2] = {0, 0};
    char *bytes = calloc(size + 1, 1);
    forebay_range ranges[2] = {
        {.path = path, .offset = 0, .length = half, .into = bytes},
        {.path = path, .offset = half, .length = size - half, .into = bytes + half},
    };
    forebay_operation *operations[2] = {NULL, NULL};
    int told = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    for (int number = 0; number < 2; number++) {
        must(forebay_begin(client, &ranges[number], 1, &operations[number]), "begin");
        must(forebay_notify(operations[number], told), "notify");
    }
    eventfd_t ended = 0;
    while (ended < 2) {
        struct pollfd polled = {.fd = told, .events = POLLIN};
        eventfd_t more = 0;
        if (poll(&polled, 1, -1) == 1 && eventfd_read(told, &more) == 0) {
            ended += more;
        }
    }
    for (int number = 0; number < 2; number++) {
        must(forebay_wait(operations[number], 0, &got[number]), "wait");
        forebay_operation_free(operations[number]);
    }
    close(told);
    printf("got %zu of %zu\n", got[0] + got[1], size);
    printf("first and last: %.6s, %.8s\n", bytes, bytes + size - 9);
    free(bytes);
}

int main(int count, char **arguments) {
    if (count != 3) {
        fprintf(stderr, "usage: write ORIGIN PATH, with libforebay_c %s\n", forebay_version());
        return 2;
    }
    forebay_setting settings[] = {{"up", arguments[1]}, {"worker.memory.size", "64MiB"}};
    forebay_client *client = NULL;
    must(forebay_client_start(settings, 2, &client), "start");
    write_at_once(client, arguments[2]);
    write_in_pieces(client, arguments[2]);
    give_up(client, arguments[2]);
    read_by_poll(client, arguments[2]);
    forebay_client_free(client);
    return 0;
}
