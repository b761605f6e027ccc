//! Whole files, read from one end to the other: the study of Tachyon over RDMA, done again.
//!
//! That study wrote files into workers' memory, read them from other processes, each over TCP and then over RDMA, and looked at two
//! numbers: the mean time of a file, and what the processors of both ends did meanwhile. Its matrix is clients × files × sizes.
//!
//! * [`plan()`] (pure): which of it is measured, in which order;
//! * [`pattern`] (pure): what the files hold, so that every byte can be checked;
//! * [`files`]: writing and reading one file, [`together()`]: several clients that read at once;
//! * [`differences`]: where a file is not what was written, offset by offset;
//! * [`processor`]: what processes used of the processors;
//! * [`counted`] (pure): which cells count, and why others do not;
//! * [`statistics`] (pure): from cells to pairs of the same cell over two transports;
//! * [`conclusions()`] (pure): the study's four conclusions, held against those pairs;
//! * [`Kept`]: the record on disk, so that a run that was cut off can go on, and [`Made`]: what is to be cleaned up after it.
//!
//! What starts workers and mounts is not known here: a client is a directory to read in.

mod conclusions;
pub mod counted;
pub mod differences;
mod doubt;
pub mod files;
mod kept;
mod made;
mod mean;
pub mod pattern;
pub mod plan;
pub mod processor;
pub mod statistics;
mod together;
mod units;

pub use conclusions::{against, conclusions};
pub use files::{FileError, How};
pub use kept::{KeepError, Kept};
pub use made::{Made, file_name, remove_files};
pub use plan::{Batch, Settings, Step, plan};
pub use together::{Together, together};
pub use units::{milliseconds, size};
