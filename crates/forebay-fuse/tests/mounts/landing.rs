//! Reads from workers in other processes, over TCP: with io_uring they land where the kernel takes them from.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_client::{Client, ClientOptions, Connector, PrefetchOptions};
use forebay_cluster::{Member, StaticMembership};
use forebay_fuse::{FuseIo, Mount, MountOptions};
use forebay_memory::{Pool, PoolOptions};
use forebay_store::{Store, StoreOptions};
use forebay_tcp::{ServerOptions, TcpServer, TcpTransport};
use forebay_transport::{Service, Transport};
use forebay_types::ByteSize;

use crate::bucket::{BLOCK_SIZE, Bucket, pattern};
use crate::channels::is_offered;
use crate::harness::{MINUTE, Mounted, options, runtime, skipped, wait_within};

const CLUSTER: &str = "test";
const SIZE: usize = 8 << 20;
const OFF: &str = "FUSE over io_uring is switched off: echo Y > /sys/module/fuse/parameters/enable_uring";

struct Remote(SocketAddr);

impl Connector for Remote {
    fn connect(&self, _: &Member) -> Arc<dyn Transport> {
        let options = forebay_tcp::ClientOptions::new(CLUSTER, BLOCK_SIZE);
        Arc::new(TcpTransport::new(self.0.to_string(), options))
    }
}

/// A mount over io_uring of a file that only a server at the other end of a socket has. The server is to be kept.
fn mount(request_timeout: Duration) -> (Mounted, TcpServer) {
    let (bucket, runtime, directory) = (Bucket::new(MINUTE), runtime(), tempfile::tempdir().unwrap());
    bucket.put("file", pattern(SIZE, 1));
    let guard = runtime.enter();
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let server = ServerOptions::new(address, CLUSTER, BLOCK_SIZE);
    let server = TcpServer::bind(server, Arc::clone(&bucket) as Arc<dyn Service>).unwrap();
    let pool = Pool::new(PoolOptions::fixed(ByteSize::mib(16))).unwrap();
    let buffers = runtime.block_on(Store::open(StoreOptions::in_memory(pool))).unwrap();
    // What is fetched ahead lands in the client's buffers, and some reads would find it there.
    let prefetch = PrefetchOptions { max_part_number: 0, ..PrefetchOptions::default() };
    let client_options =
        ClientOptions { block_size: BLOCK_SIZE, request_timeout, prefetch, ..ClientOptions::default() };
    let (members, connector) = (Arc::new(StaticMembership::new(["remote"])), Arc::new(Remote(server.local_addr())));
    let client = Client::new(members, connector, buffers, client_options, runtime.handle().clone());
    let options = MountOptions { io: FuseIo::Uring, ..options() };
    let mount = Mount::start(client, runtime.handle().clone(), directory.path(), &options).unwrap();
    drop(guard);
    (Mounted { mount, bucket, runtime, directory }, server)
}

fn landed(mounted: &Mounted) -> u64 {
    mounted.mount.reporter()()["fuse"]["io"]["landed"].as_u64().unwrap()
}

#[test]
fn random_reads_land_where_the_kernel_takes_them_from_and_are_right() {
    if !is_offered() {
        return skipped(OFF);
    }
    let (mounted, _server) = mount(MINUTE);
    let (file, expected) = (mounted.open_direct("file"), pattern(SIZE, 1));
    // How many of them lie within one block: the others are put together from several.
    let read = &|seed: usize| {
        let (mut at, mut of_one_block) = (seed, 0);
        let mut bytes = vec![0; 64 << 10];
        for round in 0..200_usize {
            at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // Some of them cross from block to block, or the end of the file.
            let length = [4 << 10, 4 << 10, 8 << 10, 64 << 10][round % 4];
            let offset = (at >> 16) % SIZE / 4096 * 4096;
            let got = file.read_at(&mut bytes[..length], offset as u64).unwrap();
            assert_eq!(got, length.min(SIZE - offset));
            assert!(bytes[..got] == expected[offset..offset + got], "{got} bytes at {offset}");
            let block = |at: usize| at / BLOCK_SIZE as usize;
            of_one_block += u64::from(block(offset) == block(offset + got - 1));
        }
        of_one_block
    };
    let of_one_block: u64 = std::thread::scope(|scope| {
        let readers: Vec<_> = (0..4).map(|seed| scope.spawn(move || read(seed))).collect();
        readers.into_iter().map(|reader| reader.join().unwrap()).sum()
    });
    // An answer is counted once it was given: the last of them maybe a moment after its reader has it.
    wait_within(MINUTE, "all are counted, and told", || {
        let lines = fs::read_to_string(mounted.path(".stats")).unwrap();
        landed(&mounted) == of_one_block && lines.contains(&format!("fuse.io.landed {of_one_block}\n"))
    });
}

#[test]
fn a_deadline_that_passes_before_the_worker_answers_is_an_error_by_then_and_later_reads_are_right() {
    if !is_offered() {
        return skipped(OFF);
    }
    let (mounted, _server) = mount(Duration::from_millis(300));
    let (file, expected) = (mounted.open_direct("file"), pattern(SIZE, 1));
    mounted.bucket.withhold.store(true, Ordering::Relaxed);
    std::thread::scope(|scope| {
        let readers = [1 << 20, 5 << 20, 3 << 20, 7 << 20].map(|offset| {
            let file = &file;
            scope.spawn(move || file.read_at(&mut [0; 4096], offset).unwrap_err().raw_os_error())
        });
        for reader in readers {
            assert_eq!(reader.join().unwrap(), Some(libc::ETIMEDOUT));
        }
    });
    // What was asked for comes now, while the memory that was lent serves others.
    mounted.bucket.withhold.store(false, Ordering::Relaxed);
    for offset in (0..SIZE).step_by(1 << 18).rev() {
        let mut bytes = [0; 4096];
        file.read_exact_at(&mut bytes, offset as u64).unwrap();
        assert!(bytes == expected[offset..offset + 4096], "at {offset}");
    }
    assert!(landed(&mounted) > 0);
}
