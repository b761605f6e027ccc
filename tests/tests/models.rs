//! Models on a mount, as programs read them that know nothing of Forebay.

use std::time::Duration;

use forebay_e2e::mapping::Mapping;
use forebay_e2e::{Bucket, Fio, Setup, eventually};
use forebay_testkit::DataSet;

const MIB: u64 = 1 << 20;
const SIZE: u64 = 96 * MIB;
const SOON: Duration = Duration::from_secs(60);

/// How loaders read that run only where there is a GPU, or PyTorch: what their own code has by default.
const LOADERS: [(&str, &[&str]); 5] = [
    // Chunks of 8 MiB, more of them under way than the file has.
    ("InstantTensor, URING", &["--ioengine=io_uring", "--direct=1", "--bs=8M", "--iodepth=16"]),
    ("InstantTensor, AIO", &["--ioengine=libaio", "--direct=1", "--bs=8M", "--iodepth=16"]),
    ("InstantTensor, URING_BUFFERED", &["--ioengine=io_uring", "--direct=0", "--bs=8M", "--iodepth=4"]),
    // Threads that map, in chunks of 2 MiB.
    (
        "InstantTensor, MMAP",
        &["--ioengine=mmap", "--bs=2M", "--thread", "--numjobs=3", "--size=32M", "--offset_increment=32M"],
    ),
    // Threads with a buffer of 16 MiB each.
    (
        "fastsafetensors",
        &[
            "--ioengine=psync",
            "--direct=1",
            "--bs=16M",
            "--thread",
            "--numjobs=3",
            "--size=32M",
            "--offset_increment=32M",
        ],
    ),
];

#[test]
fn a_model_is_read_whole_in_the_way_of_each_loader_and_is_what_was_put_there() {
    let Some(fio) = Fio::find() else { return };
    for (at, (loader, arguments)) in LOADERS.into_iter().enumerate() {
        println!("{loader}");
        let (bucket, data) = (Bucket::new(), DataSet::new(at as u64));
        bucket.put("model.safetensors", data, SIZE);
        let mount = Setup::of(&bucket).memory("256MiB").up(&bucket);
        let filename = format!("--filename={}", mount.path("model.safetensors").display());
        let fixed = ["--name=model", "--readonly", "--rw=read", &filename];
        // Cold, and once more.
        for _ in 0..2 {
            fio.read(&[&fixed[..], arguments].concat());
        }
        let found = std::fs::read(mount.path("model.safetensors")).unwrap();
        assert_eq!((found.len() as u64, data.first_difference(0, &found)), (SIZE, None), "{loader}");
    }
}

/// Touches a page in every eighth MiB or so, in an order that jumps about.
fn touch_all_over(mapping: &Mapping, data: DataSet) {
    for fault in 0..12 {
        let offset = (fault * 5 % 12) * 8 * MIB;
        let bytes = mapping.read(offset as usize..offset as usize + 4096).unwrap();
        assert_eq!(data.first_difference(offset, &bytes), None, "at {offset}");
    }
}

#[test]
fn page_faults_all_over_a_model_fetch_all_of_it_and_no_other_file() {
    let (bucket, data) = (Bucket::new(), DataSet::new(1));
    for name in ["model.safetensors", "tokens.bin"] {
        bucket.put(name, data, SIZE);
    }
    // Where there is room, any file that is mapped is fetched whole (`local.rs`); a model is everywhere.
    let mount = Setup::of(&bucket).memory("512MiB").served_by_the_mount().up(&bucket);
    let fetched = || bucket.proxy().counts().bytes;
    let map = |name| Mapping::of(&mount.path(name), SIZE as usize).unwrap();

    touch_all_over(&map("tokens.bin"), data);
    let before = fetched();
    assert!(before < SIZE / 2 * 3 / 2, "{before} bytes for twelve pages");
    let model = map("model.safetensors");
    touch_all_over(&model, data);
    eventually("the rest of the model is fetched", SOON, || fetched() - before >= SIZE);
    assert_eq!(data.first_difference(0, &model.read(0..SIZE as usize).unwrap()), None);
}
