//! The targets.

mod access;
mod audit;
mod benchmark;
mod csi;
mod doctor;
mod files;
mod fuse;
mod handover;
mod handshake;
mod http;
mod identity;
mod kept;
mod messages;
mod mount;
mod origin;
mod rdma;
mod records;
mod rings;
mod s3;
mod settings;
mod slabs;
mod staging;
mod streams;
mod ucx;
mod worker;

/// A target.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// What it is called: the name of its program for libFuzzer and of its folder of seeds.
    pub name: &'static str,
    /// Reads an input. Panics when something does not hold.
    pub run: fn(&[u8]),
    /// Inputs to begin with, by name.
    pub seeds: fn() -> Vec<Seed>,
}

/// An input to begin with: its name, and its bytes.
pub type Seed = (&'static str, Vec<u8>);

macro_rules! targets {
    ($($module:ident::$name:ident),* $(,)?) => {
        /// All of them.
        pub const TARGETS: &[Target] = &[
            $(Target { name: stringify!($name), run: $module::$name::run, seeds: $module::$name::seeds },)*
        ];

        /// Each by its name, so that its program has nothing of the others in it.
        pub mod run {
            $(
                /// See `docs/VERIFICATION.md`.
                pub fn $name(bytes: &[u8]) {
                    super::$module::$name::run(bytes);
                }
            )*
        }
    };
}

targets![
    streams::tcp_requests,
    streams::tcp_replies,
    streams::tcp_records,
    streams::perftest,
    messages::hello,
    messages::headers,
    messages::bodies,
    messages::window,
    handshake::window_handshake,
    messages::ucx,
    ucx::ucx_answers,
    ucx::ucx_keys,
    rdma::verbs_frames,
    rdma::verbs_connection,
    rdma::verbs_payload,
    rdma::one_sided_places,
    rdma::rdma_admission,
    identity::identities,
    identity::certificates,
    identity::passes,
    access::access_lists,
    access::authorization,
    access::http_hosts,
    audit::audit_lines,
    fuse::fuse_requests,
    fuse::fuse_session,
    rings::fuse_rings,
    mount::fuse_mount,
    handover::handover_state,
    handover::handover_journal,
    kept::kept_memory,
    kept::keeper_messages,
    slabs::slab_pages,
    slabs::slab_recovery,
    files::local_record,
    files::state_log,
    files::state_store,
    staging::staging_journal,
    staging::staging_handing,
    records::cluster_records,
    records::jobs,
    records::job_index,
    settings::config,
    settings::quantities,
    settings::listed_workers,
    settings::import_alluxio,
    settings::import_juicefs,
    settings::fluid_runtime,
    http::rest,
    s3::s3_gate,
    s3::s3_names,
    s3::s3_chunks,
    s3::s3_keys,
    csi::csi_volumes,
    origin::s3_answers,
    benchmark::benchmark_records,
    benchmark::fio_output,
    doctor::doctor_recording,
    worker::worker_requests,
];
