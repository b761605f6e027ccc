//! How much the book-keeping costs a writer. Run by hand, optimised: `cargo test --release -p forebay-staging --
//! --ignored --nocapture speed`.

use std::os::unix::fs::FileExt;

use super::*;

const FILE: u64 = 1 << 28;
const PIECE: usize = 1 << 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement: run it by name"]
async fn a_writer_is_as_fast_as_its_disk() {
    for _ in 0..5 {
        for piece in [PIECE, 128 << 10, 4 << 10] {
            let rig = Rig::new();
            let bytes = pattern(piece, 1);
            let offsets = || (0..FILE).step_by(piece);
            std::fs::create_dir_all(rig.dir()).unwrap();
            let plain = std::fs::File::create(rig.dir().join("plain")).unwrap();
            let start = Instant::now();
            offsets().for_each(|offset| plain.write_all_at(&bytes, offset).unwrap());
            let by_itself = start.elapsed();
            drop(plain);
            std::fs::remove_file(rig.dir().join("plain")).unwrap();
            let steps = Schedule::new(8 << 20).steps().to_vec();
            let options = StagingOptions {
                size: ByteSize::gib(4),
                memory: ByteSize::mib(128),
                quiet: Duration::from_millis(200),
                ..rig.options()
            };
            let staging = rig.open_with(options, &steps);
            let draft = staging.create(path("/a")).unwrap();
            let start = Instant::now();
            offsets().for_each(|offset| write(&draft, offset, &bytes));
            let staged = start.elapsed();
            draft.finish().await.unwrap();
            let finished = start.elapsed();
            let rate = |time: Duration| FILE as f64 / time.as_secs_f64() / 1e6;
            let (plain, staged, finished) = (rate(by_itself), rate(staged), rate(finished));
            println!(
                "{:>5} KiB: pwrite {plain:5.0}, try_write {staged:5.0}, until finished {finished:5.0} MB/s",
                piece >> 10
            );
        }
    }
}
