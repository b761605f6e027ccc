//! The kernel's own file system calls on real mounts, served by a worker that keeps its objects in memory.

mod bucket;
mod channels;
mod child;
mod faults;
mod handover;
mod harness;
mod landing;
mod lifecycle;
mod names;
mod passthrough;
mod reading;
mod user;
mod versions;
mod virtual_files;
