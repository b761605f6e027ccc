/* Forebay: reads objects through its cache, in the process of the program. docs/models.md tells more.
 *
 * Functions return 0 or a negative errno unless they say otherwise; forebay_error_message() has the words. Paths are absolute names of
 * the namespace. A forked child uses nothing of its parent's: what it has fails with -ESTALE, and may be freed.
 *
 * Made by crates/forebay-c/tests/header.rs: FOREBAY_BLESS=1 cargo test -p forebay-c --test header */

#ifndef FOREBAY_H
#define FOREBAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 A client of workers, or of a worker in this process. Any number of threads may use it.
 */
typedef struct forebay_client forebay_client;

/*
 A version of a file. All reads are of it; if the object was replaced and the bytes are not cached, they fail with -ESTALE. Any number
 of threads may use it.
 */
typedef struct forebay_file forebay_file;

/*
 Reads or fetches that are under way. One thread at a time uses it.
 */
typedef struct forebay_operation forebay_operation;

/*
 A file that is being written. One thread at a time uses it.
 */
typedef struct forebay_upload forebay_upload;

/*
 Bytes of a version of a file, to be read. They stay as they are until it is freed, and take memory from the cache until then. It does
 not outlive a fork: in the child there are no bytes.
 */
typedef struct forebay_view forebay_view;

/*
 A setting of a client.
 */
typedef struct {
    /*
     "up", "etcd", "workers" or "config": where to read from, and the configuration file in the place of the machine's. Anything else
     is a key of the configuration, such as "client.memory.size".
     */
    const char *name;
    /*
     Its value. Lists are written with commas between.
     */
    const char *value;
} forebay_setting;

/*
 What a name is.
 */
typedef struct {
    /*
     Bytes; 0 for a directory.
     */
    uint64_t size;
    /*
     Last modification, nanoseconds since 1970; 0 where the origin knows none.
     */
    int64_t modified_ns;
    /*
     Whether it is a file; otherwise it is a directory.
     */
    bool is_file;
    /*
     Whether it may be changed here.
     */
    bool is_writable;
} forebay_entry;

/*
 Is told of a name of a listing, which is there until it returns. Anything but 0 ends the listing.
 */
typedef int (*forebay_list_callback)(void *context, const char *path, const forebay_entry *entry);

/*
 A range of a file, and memory for it. Of `file` and `path` one is given, and the other is NULL.
 */
typedef struct {
    /*
     The file.
     */
    const forebay_file *file;
    /*
     Its path: the file that is there now.
     */
    const char *path;
    /*
     Where in it, in bytes.
     */
    uint64_t offset;
    /*
     How many bytes.
     */
    size_t length;
    /*
     Where to, of any alignment: host memory, pinned or not. forebay_prefetch needs none.
     */
    void *into;
} forebay_range;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 The version of the library, as "0.1.0".
 */
const char *forebay_version(void);

/*
 Why the last call of this thread that failed did so, and what to do about it: one line, in UTF-8, empty if none has failed. It is
 there until another call of this thread fails.
 */
const char *forebay_error_message(void);

/*
 Starts a client with `count` settings, of which one says where to read from; if none does, the configuration of the machine has to.
 It is ended by forebay_client_free.

 Returns 0, or a negative errno: -EINVAL for settings that make no sense.

 # Safety
 `settings` are so many, of strings that end with a NUL.
 */
int forebay_client_start(const forebay_setting *settings,
                         size_t count,
                         forebay_client **client);

/*
 Ends a client and its connections, and frees it; NULL is none. Files fail from then on, and views stay.

 # Safety
 `client` is of forebay_client_start, and is not used any more.
 */
void forebay_client_free(forebay_client *client);

/*
 What `path` is: absolute, as "/dir/file". With `revalidate`, the origin is asked whatever a cache says.

 Returns 0, or a negative errno: -ENOENT if there is no such name.

 # Safety
 `path` ends with a NUL.
 */
int forebay_stat(const forebay_client *client, const char *path, bool revalidate, forebay_entry *entry);

/*
 Tells `callback` of the names in the directory `path`, by their whole paths; of a file, its own.

 Returns 0, also when the callback ended the listing, or a negative errno.

 # Safety
 `path` ends with a NUL, and `callback` may be called with `context`.
 */
int forebay_list(const forebay_client *client, const char *path, forebay_list_callback callback, void *context);

/*
 Opens the file that is at `path` now. `entry`, which may be NULL, is told what it is. It is closed by forebay_close.

 Returns 0, or a negative errno: -ENOENT, -EISDIR.

 # Safety
 `path` ends with a NUL.
 */
int forebay_open(const forebay_client *client, const char *path, forebay_file **file, forebay_entry *entry);

/*
 Closes a file; NULL is none. Operations and views that were begun with it go on.

 # Safety
 `file` is of forebay_open, and is not used any more.
 */
void forebay_close(forebay_file *file);

/*
 Carries out `count` reads, which must not overlap in memory. Each fills its memory, and gets fewer bytes only at the end of its file;
 `got`, which may be NULL, has room for so many numbers of bytes. When it returns, nothing writes to the memory any more.

 Returns 0, or the negative errno of the first read that failed.

 # Safety
 There are so many reads, each with so much memory, and so much room in `got`.
 */
int forebay_read(const forebay_client *client,
                 const forebay_range *reads,
                 size_t count,
                 size_t *got);

/*
 Begins `count` reads, and returns at once. Their memory is the library's until forebay_wait says that they have ended, or the
 operation is freed. `reads` itself may go at once.

 # Safety
 There are so many reads, each with so much memory for so long.
 */
int forebay_begin(const forebay_client *client,
                  const forebay_range *reads,
                  size_t count,
                  forebay_operation **operation);

/*
 Begins to fetch `count` ranges before they are read: to this process, or, with `to_workers`, to the workers that own them, for who
 reads them elsewhere. Errors are met by who reads them, too. Fetches take memory from what is cached: announce no more than there
 is room for.

 # Safety
 There are so many ranges.
 */
int forebay_prefetch(const forebay_client *client,
                     const forebay_range *ranges,
                     size_t count,
                     bool to_workers,
                     forebay_operation **operation);

/*
 Waits until an operation has ended, for so many milliseconds at most: 0 only looks, and with a negative number it waits as long as it
 takes. `got`, which may be NULL, is told how many bytes each read got.

 Returns 0 once it has ended, 1 while it is under way, or the negative errno of the first read that failed.

 # Safety
 `got` has room for a number for each read.
 */
int forebay_wait(forebay_operation *operation,
                 int64_t milliseconds,
                 size_t *got);

/*
 Has an eventfd(2) of the caller's told when an operation has ended: 1 is added to it then, or at once if it has. From then on
 forebay_wait does not return 1. So a program waits for reads and for whatever else it polls. Many operations may have the same eventfd,
 and it may be closed at any time: the library has a descriptor of its own. An operation that is freed tells, too.

 Returns 0, or a negative errno: -EBADF, or -EINVAL for a descriptor of something else.

 # Safety
 None but that the pointers are what they say.
 */
int forebay_notify(const forebay_operation *operation,
                   int eventfd);

/*
 Gives an operation up if it is under way, and frees it; NULL is none. When it returns, nothing writes to its memory any more.

 # Safety
 `operation` is of forebay_begin or forebay_prefetch, and is not used any more.
 */
void forebay_operation_free(forebay_operation *operation);

/*
 Makes `path` a file of these bytes: it appears, or is replaced, whole or not at all. With `only_new` it is refused if there is such a
 name. `entry`, which may be NULL, is told what the file is then. When it returns, nothing reads the memory any more.

 Returns 0, or a negative errno: -EEXIST, -EISDIR, and -EROFS where nothing may be written.

 # Safety
 `path` ends with a NUL, and there are so many bytes.
 */
int forebay_put(const forebay_client *client,
                const char *path,
                const void *bytes,
                size_t length,
                bool only_new,
                forebay_entry *entry);

/*
 Begins to write the file `path`, from its beginning to its end. Nobody sees anything of it before forebay_finish. With `only_new` it is
 refused if there is such a name. It is freed by forebay_upload_free.

 Returns 0, or a negative errno, as forebay_put.

 # Safety
 `path` ends with a NUL.
 */
int forebay_create(const forebay_client *client,
                   const char *path,
                   bool only_new,
                   forebay_upload **upload);

/*
 Adds bytes at the end. It returns when they are copied, and waits while `write.memory` is full: they may be on their way then, and what
 keeps them from arriving fails a later call. After a failure the file is given up.

 Returns 0, or a negative errno: -EFBIG.

 # Safety
 There are so many bytes.
 */
int forebay_write(const forebay_upload *upload,
                  const void *bytes,
                  size_t length);

/*
 Completes a file: it is there, whole, when this returns 0. `entry`, which may be NULL, is told what it is.

 Returns 0, or a negative errno: the file is what it was before, unless the answer was lost.

 # Safety
 None but that the pointers are what they say.
 */
int forebay_finish(const forebay_upload *upload, forebay_entry *entry);

/*
 Frees an upload; NULL is none. A file that is not finished is given up: it never was.

 # Safety
 `upload` is of forebay_create, and is not used any more.
 */
void forebay_upload_free(forebay_upload *upload);

/*
 Shows `length` bytes of a file, fewer only at its end, where they lie in memory of this process or of a worker on this host. If they
 lie in several pieces, or views hold too much already, it is a copy. It is freed by forebay_view_free.

 Returns 0, or a negative errno.

 # Safety
 None but that the pointers are what they say.
 */
int forebay_view_new(const forebay_client *client,
                     const forebay_file *file,
                     uint64_t offset,
                     size_t length,
                     forebay_view **view);

/*
 Where the bytes of a view are, and how many: `length` and `is_copy` may be NULL. NULL in a forked child, and for no view.

 # Safety
 None but that the pointers are what they say.
 */
const void *forebay_view_bytes(const forebay_view *view,
                               size_t *length,
                               bool *is_copy);

/*
 Frees a view; NULL is none. Its bytes may be gone from then on.

 # Safety
 `view` is of forebay_view_new, and is not used any more.
 */
void forebay_view_free(forebay_view *view);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* FOREBAY_H */
