//! How fast Rust reads what `python/benchmarks/reads.py` reads: a worker of a directory in this process, its memory warm.
//!
//! `reads DIRECTORY FILE BYTES SECONDS` prints how many random reads of so many bytes a second it copies into one buffer.

use std::time::{Duration, Instant};

use forebay_session::runtime::runtime;
use forebay_session::{Session, Settings};

/// As Python's benchmark: the cache holds all of the file.
const MEMORY: &str = "1GiB";
/// Between two looks at the clock.
const AT_ONCE: u32 = 100;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [directory, file, bytes, seconds] = &arguments[..] else {
        return Err("usage: reads DIRECTORY /FILE BYTES SECONDS".into());
    };
    let (length, duration): (u32, _) = (bytes.parse()?, Duration::from_secs_f64(seconds.parse()?));
    let more = vec![("worker.memory.size".to_owned(), MEMORY.to_owned())];
    let settings = Settings { up: Some(directory.clone()), more, ..Settings::default() };
    let rate = runtime()?.block_on(async {
        let session = Session::start(settings).await?;
        let (file, entry) = session.clone().open(file.clone().into_bytes()).await?;
        let size = entry.version.map_or(0, |version| version.size);
        for at in (0..size).step_by(1 << 20) {
            file.read(at, 1 << 20).await?;
        }
        let (mut buffer, mut random, mut reads) = (vec![0; length as usize], 0x9e37_79b9_7f4a_7c15_u64, 0_u32);
        let began = Instant::now();
        while began.elapsed() < duration {
            for _ in 0..AT_ONCE {
                // xorshift64
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                let offset = random % (size / u64::from(length)) * u64::from(length);
                let spans = match file.try_read(offset, length) {
                    Some(spans) => spans,
                    None => file.read(offset, length).await?,
                };
                let mut at = 0;
                for span in &spans {
                    buffer[at..at + span.len()].copy_from_slice(span);
                    at += span.len();
                }
            }
            reads += AT_ONCE;
        }
        std::hint::black_box(&buffer);
        let rate = f64::from(reads) / began.elapsed().as_secs_f64();
        session.close().await?;
        Ok::<f64, Box<dyn std::error::Error>>(rate)
    })?;
    println!("{rate:.0}");
    Ok(())
}
