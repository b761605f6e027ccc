//! What a client says that its bytes are, compared with what they were: in headers, or in a trailer that follows them.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use s3s::checksum::ChecksumHasher;
use s3s::crypto::{Checksum as _, Crc32, Crc32c, Crc64Nvme, Md5, Sha1, Sha256};
use s3s::{S3Error, S3ErrorCode, TrailingHeaders};

/// Names of the checksums that are known, as headers and trailers have them.
const NAMES: [&str; 5] = [
    "x-amz-checksum-crc32",
    "x-amz-checksum-crc32c",
    "x-amz-checksum-crc64nvme",
    "x-amz-checksum-sha1",
    "x-amz-checksum-sha256",
];

/// What a client says of a body, in base64; in the order of [`NAMES`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Declared {
    pub(crate) checksums: [Option<String>; NAMES.len()],
    pub(crate) md5: Option<String>,
    /// The headers that are to follow the body, as `x-amz-trailer` names them.
    pub(crate) trailer: Option<String>,
}

/// The checksums of a body, as far as it has come.
pub(crate) struct Checking {
    declared: Declared,
    hasher: ChecksumHasher,
    md5: Option<Md5>,
}

impl Declared {
    fn is_announced(&self, at: usize) -> bool {
        let trailer = self.trailer.as_deref().unwrap_or_default();
        trailer.split(',').any(|name| name.trim().eq_ignore_ascii_case(NAMES[at]))
    }

    fn wants(&self, at: usize) -> bool {
        self.checksums[at].is_some() || self.is_announced(at)
    }
}

impl Checking {
    pub(crate) fn new(declared: Declared) -> Self {
        let wants = |at| declared.wants(at);
        let hasher = ChecksumHasher {
            crc32: wants(0).then(Crc32::new),
            crc32c: wants(1).then(Crc32c::new),
            crc64nvme: wants(2).then(Crc64Nvme::new),
            sha1: wants(3).then(Sha1::new),
            sha256: wants(4).then(Sha256::new),
        };
        let md5 = declared.md5.is_some().then(Md5::new);
        Self { declared, hasher, md5 }
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
        if let Some(md5) = &mut self.md5 {
            md5.update(bytes);
        }
    }

    /// Compares them, when all of the body has come, and with it `trailers`.
    ///
    /// # Errors
    /// What a client is told whose bytes are not those that it meant.
    pub(crate) fn finish(self, trailers: Option<&TrailingHeaders>) -> Result<(), S3Error> {
        let Self { mut declared, hasher, md5 } = self;
        for (at, name) in NAMES.iter().enumerate() {
            if declared.is_announced(at) && declared.checksums[at].is_none() {
                declared.checksums[at] = Some(trailing(trailers, name)?);
            }
        }
        let found = hasher.finalize();
        let found = [
            found.checksum_crc32,
            found.checksum_crc32c,
            found.checksum_crc64nvme,
            found.checksum_sha1,
            found.checksum_sha256,
        ];
        for ((declared, found), name) in declared.checksums.iter().zip(&found).zip(NAMES) {
            if let Some(declared) = declared
                && found.as_ref() != Some(declared)
            {
                let message = format!("the bytes that came do not have the `{name}` that was sent with them");
                return Err(S3Error::with_message(S3ErrorCode::BadDigest, message));
            }
        }
        match (declared.md5, md5.map(|md5| STANDARD.encode(md5.finalize()))) {
            (Some(declared), found) if found.as_ref() != Some(&declared) => {
                let message = "the bytes that came do not have the `Content-MD5` that was sent with them";
                Err(S3Error::with_message(S3ErrorCode::BadDigest, message))
            }
            _ => Ok(()),
        }
    }
}

fn trailing(trailers: Option<&TrailingHeaders>, name: &str) -> Result<String, S3Error> {
    let value = trailers.and_then(|trailers| {
        trailers.read(|headers| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)).flatten()
    });
    value.ok_or_else(|| {
        let message = format!("the trailer `{name}` was announced, and did not come");
        S3Error::with_message(S3ErrorCode::InvalidRequest, message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finished(declared: Declared) -> Option<String> {
        let mut checking = Checking::new(declared);
        checking.update(b"hel");
        checking.update(b"lo");
        checking.finish(None).err().map(|error| error.code().as_str().to_owned())
    }

    #[test]
    fn bytes_that_are_not_what_their_checksum_says_are_refused() {
        // Of `hello`, by other programs.
        let md5 = "XUFAKrxLKna5cZ2REBfFkg==";
        let crc32 = "NhCmhg==";
        let sha256 = "LPJNul+wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ=";
        let with = |at: usize, text: &str| {
            let mut declared = Declared::default();
            declared.checksums[at] = Some(text.to_owned());
            declared
        };
        assert_eq!(finished(Declared::default()), None);
        assert_eq!(finished(with(0, crc32)), None);
        assert_eq!(finished(with(4, sha256)), None);
        assert_eq!(finished(Declared { md5: Some(md5.to_owned()), ..Declared::default() }), None);
        for wrong in [with(0, "AAAAAA=="), with(1, crc32), with(2, "x"), with(3, sha256), with(4, md5)] {
            assert_eq!(finished(wrong.clone()).as_deref(), Some("BadDigest"), "{wrong:?}");
        }
        let wrong = Declared { md5: Some("AAAA".to_owned()), ..Declared::default() };
        assert_eq!(finished(wrong).as_deref(), Some("BadDigest"));
    }

    #[test]
    fn a_trailer_that_was_announced_has_to_come() {
        let trailer = Some("X-Amz-Checksum-CRC32".to_owned());
        assert_eq!(finished(Declared { trailer, ..Declared::default() }).as_deref(), Some("InvalidRequest"));
        let trailer = Some("x-amz-checksum-unheard-of".to_owned());
        assert_eq!(finished(Declared { trailer, ..Declared::default() }), None);
    }
}
