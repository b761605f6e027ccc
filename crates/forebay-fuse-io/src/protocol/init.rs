//! The first exchange: what the kernel can, what we want, what it will be.

use crate::protocol::abi::{MAJOR, MAX_PAYLOAD, MAX_READ, MIN_BUFFER, MINOR, OLDEST_MINOR, capability};
use crate::protocol::fields::{Fields, Record};
use crate::protocol::malformed::Malformed;

/// Pages of a request for a kernel that does not let us say how many.
const PAGES_UNASKED: u32 = 32;

/// What the kernel begins with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InitIn {
    /// First number of its version.
    pub major: u32,
    /// Second number of its version.
    pub minor: u32,
    /// How far it reads ahead, in bytes.
    pub max_readahead: u32,
    /// What it can: bits of [`capability`].
    pub capabilities: u64,
}

impl InitIn {
    /// Reads the body of an INIT: 16 bytes of old kernels, 64 of others. Of another major version, only the version.
    pub fn parse(body: &[u8]) -> Result<Self, Malformed> {
        let mut fields = Fields::new(body);
        let (major, minor) = (fields.u32()?, fields.u32()?);
        if major != MAJOR {
            return Ok(Self { major, minor, ..Self::default() });
        }
        let (max_readahead, low) = (fields.u32()?, u64::from(fields.u32()?));
        // Kernels that have no upper half may send anything there, or nothing.
        let high = if low & capability::INIT_EXT != 0 { u64::from(fields.u32()?) } else { 0 };
        Ok(Self { major, minor, max_readahead, capabilities: high << 32 | low })
    }

    /// Whether the kernel can all of this.
    #[must_use]
    pub fn offers(&self, capabilities: u64) -> bool {
        self.capabilities & capabilities == capabilities
    }
}

/// Whether the kernel asks for attributes with the names of a directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadDirPlus {
    /// Never.
    Never,
    /// At the start of a directory, and while a program looks at the entries that it got.
    #[default]
    Auto,
    /// Always.
    Always,
}

/// What is wanted of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The most that one request writes, in bytes.
    pub max_write: u32,
    /// The most that one request reads, in bytes; no less than that.
    pub max_read: u32,
    /// Size of a page of the kernel's, in bytes.
    pub page_size: u32,
    /// Read-ahead and asynchronous direct requests that may be under way.
    pub max_background: u16,
    /// So many of them mean that we cannot keep up; 0: three quarters of them.
    pub congestion_threshold: u16,
    /// Whether attributes come with names.
    pub readdirplus: ReadDirPlus,
    /// Files may be passed through.
    pub passthrough: bool,
    /// Files that are read past the page cache can be mapped to be shared.
    pub direct_io_mmap: bool,
    /// Rings are ready to be registered.
    pub uring: bool,
}

impl Default for Wanted {
    fn default() -> Self {
        Self {
            max_write: MAX_PAYLOAD,
            max_read: MAX_PAYLOAD,
            page_size: 4096,
            max_background: 64,
            congestion_threshold: 0,
            readdirplus: ReadDirPlus::Auto,
            passthrough: false,
            direct_io_mmap: false,
            uring: false,
        }
    }
}

/// What it will be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// Version of the kernel's protocol.
    pub kernel: (u32, u32),
    /// What is used: bits of [`capability`].
    pub capabilities: u64,
    /// How far the kernel reads ahead, in bytes.
    pub max_readahead: u32,
    /// The most that one request writes, in bytes.
    pub max_write: u32,
    /// Pages of a request, at most.
    pub max_pages: u16,
    /// Size of one, in bytes.
    pub page_size: u32,
    /// Read-ahead and asynchronous direct requests that may be under way.
    pub max_background: u16,
    /// So many of them mean that we cannot keep up.
    pub congestion_threshold: u16,
}

impl Negotiated {
    /// Whether all of this is used.
    #[must_use]
    pub fn has(&self, capabilities: u64) -> bool {
        self.capabilities & capabilities == capabilities
    }

    /// Whether rings may be registered once this is answered.
    #[must_use]
    pub fn uring(&self) -> bool {
        self.has(capability::OVER_IO_URING)
    }

    /// Whether files may be passed through.
    #[must_use]
    pub fn passthrough(&self) -> bool {
        self.has(capability::PASSTHROUGH)
    }

    /// Bytes of the largest payload there can be, either way: what an entry of a ring must have room for.
    #[must_use]
    pub fn payload_size(&self) -> usize {
        let pages = usize::from(self.max_pages) * self.page_size as usize;
        pages.max(self.max_write as usize).max(MIN_BUFFER)
    }

    /// The answer.
    #[must_use]
    pub fn encode(&self) -> Record<64> {
        let mut record = Record::new();
        record.u32(MAJOR).u32(MINOR).u32(self.max_readahead).u32(self.capabilities as u32);
        record.u16(self.max_background).u16(self.congestion_threshold);
        let time_granularity = 1;
        record.u32(self.max_write).u32(time_granularity);
        let map_alignment = 0;
        record.u16(self.max_pages).u16(map_alignment);
        record.u32((self.capabilities >> 32) as u32);
        // File systems may lie two deep on another. We are the first of these, so what is passed through must be none, and
        // there may be one on us.
        record.u32(u32::from(self.passthrough()));
        record
    }
}

/// Why a kernel is not served, at least not yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoAgreement {
    /// It speaks a later major version. Answer with [`our_version`]: it begins again with one that we speak.
    #[error("the kernel speaks version {0} of FUSE first")]
    Later(u32),
    /// It is too old. Answer `EPROTO`.
    #[error("this kernel's FUSE is older than Linux 5.8: it speaks {0}.{1}, and 7.31 is needed")]
    TooOld(u32, u32),
}

/// Settles what the kernel offers and we want.
pub fn negotiate(init: &InitIn, wanted: &Wanted) -> Result<Negotiated, NoAgreement> {
    if init.major > MAJOR {
        return Err(NoAgreement::Later(init.major));
    }
    if init.major < MAJOR || init.minor < OLDEST_MINOR {
        return Err(NoAgreement::TooOld(init.major, init.minor));
    }
    let capabilities = init.capabilities & wanted_capabilities(wanted);

    let page_size = wanted.page_size.max(4096);
    let most_pages = if capabilities & capability::MAX_PAGES != 0 { u32::from(u16::MAX) } else { PAGES_UNASKED };
    let most = wanted.max_write.min(MAX_PAYLOAD);
    // More than that is never answered, and the kernel takes what a read lacks for zeros.
    let most_read = wanted.max_read.min(MAX_READ).max(most);
    // The kernel takes less than a page for a page, and no more than it allows.
    let max_pages = most_read.div_ceil(page_size).clamp(1, most_pages);
    let max_write = most.max(page_size).min(max_pages.saturating_mul(page_size));

    let max_background = wanted.max_background.max(1);
    let three_quarters = max_background - max_background / 4;
    let congestion_threshold = match wanted.congestion_threshold {
        0 => three_quarters,
        threshold => threshold.min(max_background),
    };
    Ok(Negotiated {
        kernel: (init.major, init.minor),
        capabilities,
        max_readahead: init.max_readahead,
        max_write,
        max_pages: u16::try_from(max_pages).unwrap_or(u16::MAX),
        page_size,
        max_background,
        congestion_threshold,
    })
}

/// The answer to a kernel that begins with a later major version.
#[must_use]
pub fn our_version() -> Record<64> {
    let mut record = Record::new();
    record.u32(MAJOR).u32(MINOR);
    record
}

fn wanted_capabilities(wanted: &Wanted) -> u64 {
    use capability::*;
    // With the truncation a file that is opened to be overwritten need not be asked for first.
    let always = ASYNC_READ | ASYNC_DIO | PARALLEL_DIROPS | BIG_WRITES | MAX_PAGES | ATOMIC_O_TRUNC | INIT_EXT;
    let readdirplus = match wanted.readdirplus {
        ReadDirPlus::Never => 0,
        ReadDirPlus::Auto => DO_READDIRPLUS | READDIRPLUS_AUTO,
        ReadDirPlus::Always => DO_READDIRPLUS,
    };
    let when = |is_wanted: bool, capability: u64| if is_wanted { capability } else { 0 };
    always
        | readdirplus
        | when(wanted.passthrough, PASSTHROUGH)
        | when(wanted.direct_io_mmap, DIRECT_IO_ALLOW_MMAP)
        | when(wanted.uring, OVER_IO_URING)
}

#[cfg(test)]
mod tests {
    use capability::*;

    use super::*;

    /// What a kernel of that version can, as far as it matters here, and more.
    fn kernel(minor: u32) -> InitIn {
        let old = 0x03ff_ffff;
        let capabilities = match minor {
            ..36 => old,
            36..40 => old | INIT_EXT | HAS_EXPIRE_ONLY | DIRECT_IO_ALLOW_MMAP,
            40..42 => old | INIT_EXT | HAS_EXPIRE_ONLY | DIRECT_IO_ALLOW_MMAP | PASSTHROUGH,
            42.. => old | INIT_EXT | HAS_EXPIRE_ONLY | DIRECT_IO_ALLOW_MMAP | PASSTHROUGH | OVER_IO_URING | 1 << 42,
        };
        InitIn { major: 7, minor, max_readahead: 128 << 10, capabilities }
    }

    fn everything() -> Wanted {
        Wanted { passthrough: true, direct_io_mmap: true, uring: true, ..Wanted::default() }
    }

    fn u32_at(bytes: &[u8], offset: usize) -> u32 {
        u32::from_ne_bytes(bytes[offset..offset + 4].try_into().unwrap())
    }

    fn u16_at(bytes: &[u8], offset: usize) -> u16 {
        u16::from_ne_bytes(bytes[offset..offset + 2].try_into().unwrap())
    }

    #[test]
    fn each_kernel_gives_what_it_can() {
        let can = |minor: u32| negotiate(&kernel(minor), &everything()).unwrap();
        assert!(!can(31).passthrough() && !can(31).uring() && !can(31).has(INIT_EXT));
        assert!(can(36).has(INIT_EXT | DIRECT_IO_ALLOW_MMAP) && !can(36).passthrough() && !can(36).uring());
        assert!(can(40).passthrough() && !can(40).uring());
        for minor in [42, 45, 99] {
            assert!(can(minor).passthrough() && can(minor).uring(), "7.{minor}");
        }
        for minor in [31, 36, 42] {
            let always = ASYNC_READ | ASYNC_DIO | PARALLEL_DIROPS | MAX_PAGES | ATOMIC_O_TRUNC | DO_READDIRPLUS;
            assert!(can(minor).has(always | READDIRPLUS_AUTO), "7.{minor}");
            assert_eq!((can(minor).max_write, can(minor).max_pages), (1 << 20, 256));
            assert_eq!(can(minor).payload_size(), 1 << 20);
        }
    }

    #[test]
    fn nothing_is_used_that_is_not_wanted() {
        let little = Wanted { readdirplus: ReadDirPlus::Never, ..Wanted::default() };
        let negotiated = negotiate(&kernel(45), &little).unwrap();
        let never = [1u64 << 16, 1 << 17, 1 << 20, 1 << 42, PASSTHROUGH, OVER_IO_URING, DIRECT_IO_ALLOW_MMAP];
        for capability in never.into_iter().chain([DO_READDIRPLUS, READDIRPLUS_AUTO]) {
            assert!(!negotiated.has(capability), "{capability:#x}");
        }
        let always = Wanted { readdirplus: ReadDirPlus::Always, ..Wanted::default() };
        let negotiated = negotiate(&kernel(45), &always).unwrap();
        assert!(negotiated.has(DO_READDIRPLUS) && !negotiated.has(READDIRPLUS_AUTO));
    }

    #[test]
    fn kernels_that_are_too_old_or_begin_with_a_later_version_get_no_agreement() {
        let with = |major, minor| negotiate(&InitIn { major, minor, ..kernel(42) }, &everything());
        assert_eq!(with(7, 30), Err(NoAgreement::TooOld(7, 30)));
        assert_eq!(with(6, 99), Err(NoAgreement::TooOld(6, 99)));
        assert_eq!(with(8, 0), Err(NoAgreement::Later(8)));
        assert!(NoAgreement::TooOld(7, 30).to_string().contains("older than Linux 5.8"));
        let ours = our_version();
        assert_eq!((ours.len(), u32_at(&ours, 0), u32_at(&ours, 4)), (64, 7, 42));
        assert_eq!(ours[8..], [0; 56]);
    }

    #[test]
    fn the_answer_has_its_numbers_in_place() {
        let wanted = Wanted { max_background: 100, congestion_threshold: 90, ..everything() };
        let negotiated = negotiate(&kernel(45), &wanted).unwrap();
        let answer = negotiated.encode();
        assert_eq!(answer.len(), 64);
        assert_eq!([0, 4, 8].map(|offset| u32_at(&answer, offset)), [7, 42, 128 << 10]);
        assert_eq!(u64::from(u32_at(&answer, 12)), negotiated.capabilities & 0xffff_ffff);
        assert_eq!([16, 18].map(|offset| u16_at(&answer, offset)), [100, 90]);
        assert_eq!([20, 24].map(|offset| u32_at(&answer, offset)), [1 << 20, 1]);
        assert_eq!([28, 30].map(|offset| u16_at(&answer, offset)), [256, 0]);
        assert_eq!(u64::from(u32_at(&answer, 32)), negotiated.capabilities >> 32);
        assert_eq!(u32_at(&answer, 36), 1, "a file that is passed through is one level below");
        assert_eq!(answer[40..], [0; 24]);

        let alone = negotiate(&kernel(36), &wanted).unwrap().encode();
        assert_eq!(u32_at(&alone, 36), 0);
        assert_eq!(u32_at(&alone, 32), (DIRECT_IO_ALLOW_MMAP >> 32) as u32);
    }

    #[test]
    fn requests_are_as_large_as_the_kernel_lets_them_be() {
        let unasked = InitIn { capabilities: kernel(31).capabilities & !MAX_PAGES, ..kernel(31) };
        let negotiated = negotiate(&unasked, &everything()).unwrap();
        assert_eq!((negotiated.max_pages, negotiated.max_write), (32, 128 << 10));

        let sizes = |max_write: u32, page_size: u32| {
            let wanted = Wanted { max_write, max_read: 0, page_size, ..everything() };
            let negotiated = negotiate(&kernel(42), &wanted).unwrap();
            (negotiated.max_pages, negotiated.max_write, negotiated.payload_size())
        };
        assert_eq!(sizes(256 << 10, 4096), (64, 256 << 10, 256 << 10));
        assert_eq!(sizes(1 << 20, 64 << 10), (16, 1 << 20, 1 << 20));
        assert_eq!(sizes(0, 4096), (1, 4096, 8192), "a page at least, and a buffer that the kernel puts up with");
        assert_eq!(sizes(5000, 4096), (2, 5000, 8192));
        assert_eq!(sizes(u32::MAX, 4096), (256, 1 << 20, 1 << 20));
        let long_reads = Wanted { max_read: u32::MAX, ..everything() };
        let negotiated = negotiate(&kernel(42), &long_reads).unwrap();
        let sizes = (negotiated.max_pages, negotiated.max_write, negotiated.payload_size());
        assert_eq!(sizes, (1024, 1 << 20, 4 << 20), "a longer read would be answered in part");
    }

    #[test]
    fn there_is_always_room_in_the_background_and_congestion_comes_before_it_ends() {
        let background = |max_background: u16, congestion_threshold: u16| {
            let wanted = Wanted { max_background, congestion_threshold, ..everything() };
            let negotiated = negotiate(&kernel(42), &wanted).unwrap();
            (negotiated.max_background, negotiated.congestion_threshold)
        };
        assert_eq!(background(64, 0), (64, 48));
        assert_eq!(background(0, 0), (1, 1));
        assert_eq!(background(10, 99), (10, 10));
        assert_eq!(background(u16::MAX, 0), (u16::MAX, 49_152));
    }

    #[test]
    fn the_upper_bits_count_only_where_the_kernel_says_that_it_has_them() {
        let body = |numbers: &[u32]| numbers.iter().flat_map(|number| number.to_ne_bytes()).collect::<Vec<_>>();
        let old = InitIn::parse(&body(&[7, 31, 4096, 1])).unwrap();
        assert_eq!(old, InitIn { major: 7, minor: 31, max_readahead: 4096, capabilities: 1 });
        // Without the bit, what follows may be anything.
        assert_eq!(InitIn::parse(&body(&[7, 31, 4096, 1, u32::MAX])), Ok(old));
        let new = InitIn::parse(&body(&[7, 42, 4096, 1 << 30, 1 << 9])).unwrap();
        assert!(new.offers(OVER_IO_URING | INIT_EXT) && !new.offers(PASSTHROUGH));
        assert_eq!(InitIn::parse(&body(&[7, 42, 4096, 1 << 30])), Err(Malformed::Short));
        assert_eq!(InitIn::parse(&body(&[7, 42, 4096])), Err(Malformed::Short));
        // What a later version has there is not known.
        assert_eq!(InitIn::parse(&body(&[8, 1])).map(|init| (init.major, init.minor)), Ok((8, 1)));
    }
}
