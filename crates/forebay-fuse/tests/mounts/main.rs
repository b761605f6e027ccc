//! The kernel's own file system calls on real mounts, served by a worker that keeps its objects in memory.

mod bucket;
mod child;
mod faults;
mod harness;
mod lifecycle;
mod names;
mod reading;
mod user;
mod versions;
mod virtual_files;
